"""What stands between the text of a manifest and a program: Kubernetes' own `$(NAME)`, and the shell that KubeRay uses.

Sources: Kubernetes, `third_party/forked/golang/expansion/expand.go`; the manual of bash ("Shell Syntax", "Quoting",
"Shell Expansions"). Only that much of bash is read as commands in manifests need: words, quotes, expansions of
variables and commands, patterns, redirections, and what ends a command.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

TEXT, VARIABLE, COMMAND = "text", "variable", "command"
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_SEQUENCE = re.compile(r"(?P<first>-?\d{1,6}|[A-Za-z])\.\.(?P<last>-?\d{1,6}|[A-Za-z])(?:\.\.(?P<step>-?\d{1,6}))?")
_MAX_SEQUENCE = 1000  # words
_SUM = re.compile(r"[\d\s()+*/%-]{1,80}")
_ANSI = re.compile(r"\\(?:(?P<sign>[abeEfnrtv\\'\"?])|x(?P<hex>[0-9A-Fa-f]{1,2})|(?P<octal>[0-7]{1,3}))")
_SIGNS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_BRACED = re.compile(r"\{(?:(?P<name>[A-Za-z_]\w*)(?P<rest>[^}]*)|[^}]*)\}")
_REDIRECT = re.compile(r"(?:\d*|&)(?:>>|>\||>&|<<<|<<-?|<>|<&|>|<)")
_ENDS = ("&&", "||", "|&", ";", "|", "&", "\n")
_BLANKS = " \t"
_PATTERN = re.compile(r"[*?]|\[[^\]]+\]")

Output = Callable[[str], str]


@dataclass(frozen=True)
class Part:
    """A piece of a word.

    Attributes:
        kind: `TEXT`; `VARIABLE`, whose `value` is its name, with what follows in braces, or a sum between two pairs
            of parentheses; or `COMMAND`, whose `value` is what runs.
        quoted: by quotes of either sort or a backslash, so that it is neither split nor taken for a pattern.
    """

    kind: str
    value: str
    quoted: bool


Word = tuple[Part, ...]


@dataclass(frozen=True)
class Command:
    """One command of a line.

    Attributes:
        words: its words, in order; redirections are not among them.
        text: how it is written.
        after: what stands before it: "", ";", "&&", "||", "|", "|&", "&" or a line break.
        redirects: whether the shell opens files for it.
    """

    words: tuple[Word, ...]
    text: str
    after: str
    redirects: bool = False

    @property
    def substitutions(self) -> list[str]:
        """The commands that run to make its words."""
        return [part.value for word in self.words for part in word if part.kind == COMMAND]

    @property
    def expands(self) -> bool:
        """Whether a variable or the output of a command is put into a word."""
        return any(part.kind != TEXT for word in self.words for part in word)

    @property
    def has_pattern(self) -> bool:
        """Whether a word is a pattern that the shell may replace by the names of files."""
        return any(is_pattern(word) for word in self.words)


def kubernetes_expanded(text: str, env: Mapping[str, str]) -> str:
    """What Kubernetes makes of `command` and `args`: `$(NAME)` of the container's own variables, and `$$` for `$`.

    A name that the container has no variable for stays as it is written.

    Example:
        >>> kubernetes_expanded("$(A) $(B) $$(A) $A", {"A": "1"})
        '1 $(B) $(A) $A'
    """
    made, at = [], 0
    while at < len(text):
        end = text.find(")", at) if text.startswith("$(", at) else -1
        if text.startswith("$$", at):
            made.append("$")
            at += 2
        elif end > 0:
            name = text[at + 2 : end]
            made.append(env.get(name, f"$({name})"))
            at = end + 1
        else:
            made.append(text[at])
            at += 1
    return "".join(made)


def double_quoted(text: str) -> Word:
    """The parts of what stands between two double quotes, all of them quoted.

    Raises:
        ValueError: a substitution in it has no end.
    """
    return tuple(_merged(_parts(text, 0, len(text), quoted=True)))


def commands(line: str) -> list[Command]:
    """The commands of a line, or of several.

    Raises:
        ValueError: bash would refuse it: a quote or a substitution without an end, or a part of it that stands where
            none can be.
    """
    found: list[Command] = []
    reader = _Reader(line)
    after = ""
    while True:
        command, end = reader.command(after)
        if command.words or command.redirects:
            found.append(command)
        elif end not in ("", "\n") or (after not in ("", ";", "&", "\n") and end == ""):
            raise ValueError(f"there is no command before {end!r}" if end else f"there is no command after {after!r}")
        if end == "":
            return found
        after = end if command.words or command.redirects else after


def expanded(word: Word, env: Mapping[str, str], output: Output) -> list[str]:
    """What a word becomes: several where a value that is not quoted has blanks in it, none where nothing is left.

    Patterns stay as they are written, as they do where no file fits.

    Args:
        env: the variables; another is empty.
        output: what a command prints.
    """
    made, current, is_word = [], "", False
    for part in word:
        value = _value(part, env, output)
        if part.kind == TEXT or part.quoted:
            current, is_word = current + value, True
            continue
        pieces = value.split()
        if value[:1].isspace() and current:
            made.append(current)
            current, is_word = "", False
        for number, piece in enumerate(pieces):
            if number:
                made.append(current)
                current = ""
            current, is_word = current + piece, True
        if value[-1:].isspace() and pieces:
            made.append(current)
            current, is_word = "", False
    return [*made, current] if is_word else made


def braced(word: Word) -> list[Word]:
    """The words that bash makes of one with `{a,b}` in it; of another, itself.

    Example:
        >>> ["".join(part.value for part in one) for one in braced((Part(TEXT, "x{a,b}", False),))]
        ['xa', 'xb']
    """
    return [tuple(_merged(one)) for one in _alternatives(_letters(word))]


def _letters(word: Word) -> list[Part]:
    """A word with each letter that is not quoted as a part of its own."""
    return [
        one
        for part in word
        for one in ([Part(TEXT, x, False) for x in part.value] if part.kind == TEXT and not part.quoted else [part])
    ]


def _alternatives(letters: list[Part]) -> list[list[Part]]:
    for begin, one in enumerate(letters):
        if one != Part(TEXT, "{", False):
            continue
        depth, commas = 0, []
        for at in range(begin, len(letters)):
            sign = letters[at].value if letters[at].kind == TEXT and not letters[at].quoted else ""
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if sign == "," and depth == 1:
                commas.append(at)
            if depth == 0:
                break
        ends = [begin, *commas, at]
        choices = [letters[first + 1 : last] for first, last in zip(ends, ends[1:], strict=False)]
        if depth == 0 and not commas:
            choices = [[Part(TEXT, one, False)] for one in _sequence(letters[begin + 1 : at])]
        if depth == 0 and choices:
            rest = _alternatives(letters[at + 1 :])
            inner = [one for choice in choices for one in _alternatives(choice)]
            return [[*letters[:begin], *one, *tail] for one in inner for tail in rest]
    return [letters]


def _sequence(letters: list[Part]) -> list[str]:
    """The words of `{1..9}`, `{a..e}` or `{0..8..2}`, from what stands between the braces; none of anything else."""
    text = "".join(one.value if one.kind == TEXT and not one.quoted else "'" for one in letters)
    match = _SEQUENCE.fullmatch(text)
    if not match or match["first"].isalpha() != match["last"].isalpha():
        return []
    names = match["first"].isalpha()
    first, last = (ord(match[end]) if names else int(match[end]) for end in ("first", "last"))
    step = abs(int(match["step"] or 1)) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    wide = max(len(match[end]) for end in ("first", "last"))
    # a nought in front makes all of them as long as the longest
    padded = not names and any(re.match(r"-?0\d", match[end]) for end in ("first", "last"))
    if len(numbers) > _MAX_SEQUENCE:
        return []
    return [chr(one) if names else f"{one:0{wide if padded else 0}d}" for one in numbers]


def is_pattern(word: Word) -> bool:
    """Whether the shell may replace a word by the names of files."""
    return bool(_PATTERN.search("".join(part.value if not part.quoted else "" for part in word if part.kind == TEXT)))


def is_plain(line: str, words: list[str]) -> bool:
    """Whether a shell reads a line as one command of exactly these words, whatever its variables and files are."""
    try:
        found = commands(line)
    except ValueError:
        return False
    if len(found) != 1 or found[0].redirects or found[0].expands or found[0].has_pattern:
        return False
    return [expanded(word, {}, str) for word in found[0].words] == [[word] for word in words]


def _value(part: Part, env: Mapping[str, str], output: Output) -> str:
    if part.kind == TEXT:
        return part.value
    if part.kind == COMMAND:
        return output(part.value).rstrip("\n")
    if part.value.startswith("(("):
        return _sum(part.value[2:-2])
    name, default = part.value, ""
    for mark in (":-", ":=", "-"):
        if mark in part.value:
            name, _, default = part.value.partition(mark)
            break
    there = env.get(name)
    return default if there is None or (not there and mark != "-") else there


def _sum(text: str) -> str:
    """What `$((…))` makes of whole numbers; a name in it, or a form that is not looked at here, leaves nothing."""
    if not _SUM.fullmatch(text) or "**" in text or "//" in text:
        return ""
    try:
        # digits and the signs of sums alone; bash rounds towards nought, which a fraction's integer does too
        return str(_number(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return ""


def _number(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _number(operand)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _number(left), _number(right)
            match op:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.Div():
                    return int(Fraction(one, other))
                case ast.Mod():
                    return one - other * int(Fraction(one, other))
    raise ValueError("this is no sum of whole numbers")


# ---- reading --------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads commands one after the other."""

    def __init__(self, line: str):
        self.line, self.at = line, 0

    def command(self, after: str) -> tuple[Command, str]:
        """The next command, and what ends it; "" at the end of the text."""
        words: list[Word] = []
        start, redirects, end, comment = self.at, False, "", 0
        while self.at < len(self.line):
            rest = self.line[self.at :]
            if rest.startswith("\\\n"):
                self.at += 2
            elif rest[0] in _BLANKS:
                self.at += 1
            elif rest[0] == "#":
                comment = len(rest.partition("\n")[0])
                self.at += comment
            elif match := _REDIRECT.match(rest):
                self.at += match.end()
                self._skip_blanks()
                if not self.word():
                    raise ValueError("a redirection has no file")
                redirects = True
            elif rest.startswith(";;"):
                raise ValueError("';;' stands where none can be")
            elif end := next((mark for mark in _ENDS if rest.startswith(mark)), ""):
                break
            elif rest[0] in "()":
                raise ValueError(f"{rest[0]!r} stands where none can be")
            else:
                words.append(self.word())
        text = self.line[start : self.at - comment].strip()
        self.at += len(end)
        return Command(tuple(words), text, after, redirects), end

    def word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.line):
            letter = self.line[self.at]
            if letter in " \t\n;|&<>()":
                break
            if letter == "'":
                end = _find(self.line, "'", self.at + 1)
                parts.append(Part(TEXT, self.line[self.at + 1 : end], True))
                self.at = end + 1
            elif letter == '"':
                end = _end_of_double(self.line, self.at + 1)
                parts += [Part(TEXT, "", True), *_parts(self.line, self.at + 1, end, quoted=True)]
                self.at = end + 1
            elif self.line.startswith("$'", self.at):
                text, self.at = _ansi(self.line, self.at + 2)
                parts.append(Part(TEXT, text, True))
            elif self.line.startswith('$"', self.at):
                self.at += 1  # a text to be translated, which stays what it is
            elif letter == "\\":
                if not self.line.startswith("\\\n", self.at):
                    parts.append(Part(TEXT, self.line[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif letter in "$`":
                part, self.at = _expansion(self.line, self.at, quoted=False)
                parts.append(part)
            else:
                parts.append(Part(TEXT, letter, False))
                self.at += 1
        return tuple(_merged(parts))

    def _skip_blanks(self) -> None:
        while self.at < len(self.line) and self.line[self.at] in _BLANKS:
            self.at += 1


def _parts(text: str, at: int, end: int, quoted: bool) -> Iterator[Part]:
    """Between double quotes: a backslash keeps its meaning only before some letters."""
    while at < end:
        letter = text[at]
        if letter == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            yield Part(TEXT, text[at + 1].replace("\n", ""), quoted)
            at += 2
        elif letter in "$`":
            part, at = _expansion(text, at, quoted)
            yield part
        else:
            yield Part(TEXT, letter, quoted)
            at += 1


def _expansion(text: str, at: int, quoted: bool) -> tuple[Part, int]:
    """What begins with a dollar sign or a backquote, and where it ends; a dollar sign alone is text."""
    if text[at] == "`":
        end = _find(text, "`", at + 1)
        return Part(COMMAND, text[at + 1 : end].strip(), quoted), end + 1
    if text.startswith("$((", at):
        end = _end_of_command(text, at + 2)
        if text[end - 1] == ")":
            return Part(VARIABLE, text[at + 1 : end + 1], quoted), end + 1
    if text.startswith("$(", at):
        end = _end_of_command(text, at + 2)
        return Part(COMMAND, text[at + 2 : end].strip(), quoted), end + 1
    if match := _BRACED.match(text, at + 1):
        return Part(VARIABLE, match[0][1:-1], quoted), match.end()
    if match := _NAME.match(text, at + 1):
        return Part(VARIABLE, match[0], quoted), match.end()
    if text.startswith("${", at):
        raise ValueError("a ${ has no end")
    return Part(TEXT, "$", quoted), at + 1


def _ansi(text: str, at: int) -> tuple[str, int]:
    """What stands between `$'` and `'`, and where it ends: a backslash makes signs there."""
    end = at
    while text[end : end + 1] != "'":
        if end >= len(text):
            raise ValueError("a quote has no end")
        end += 2 if text[end] == "\\" else 1

    def made(match: re.Match) -> str:
        return (
            _SIGNS[match["sign"]]
            if match["sign"]
            else chr(int(match["hex"] or match["octal"], 16 if match["hex"] else 8))
        )

    return _ANSI.sub(made, text[at:end]), end + 1


def _end_of_double(text: str, at: int) -> int:
    while at < len(text):
        if text[at] == '"':
            return at
        if text[at] == "\\":
            at += 2
        elif text[at] in "$`":
            at = _expansion(text, at, True)[1]
        else:
            at += 1
    raise ValueError("a quote has no end")


def _end_of_command(text: str, at: int) -> int:
    depth = 1
    while at < len(text):
        if text[at] == "'":
            at = _find(text, "'", at + 1)
        elif text[at] == '"':
            at = _end_of_double(text, at + 1)
        elif text[at] == "\\":
            at += 1
        elif text[at] == "(":
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise ValueError("a $( has no end")


def _find(text: str, mark: str, at: int) -> int:
    end = text.find(mark, at)
    if end < 0:
        raise ValueError("a quote has no end")
    return end


def _merged(parts: Iterator[Part] | list[Part]) -> Iterator[Part]:
    """The parts, with texts that belong together in one."""
    held: Part | None = None
    for part in parts:
        if held and held.kind == part.kind == TEXT and held.quoted == part.quoted:
            held = Part(TEXT, held.value + part.value, held.quoted)
            continue
        if held:
            yield held
        held = part
    if held:
        yield held
