import copy

import pytest
import yaml

from helpers import state
from helpers.errors import CourseError
from helpers.widgets.quiz import bank_dir, find_item, load_items, quiz

IDS = ["00.q1", "00.q2", "01.q1", "01.q2"]
CARD = {
    "id": "77.q1",
    "kind": "choice",
    "prompt": "Which?",
    "cites": "lesson 77",
    "right": "b",
    "explanation": "Because.",
    "choices": {
        "a": {"text": "this", "feedback": "No.", "misconception": "That it is this."},
        "b": {"text": "that", "feedback": "Yes."},
    },
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)


def kept(id):
    entry = state.read_progress()["quizzes"].get(id, {})
    return {key: value for key, value in entry.items() if key != "at"}


def controls(card):
    asked, letters, button, said, twin = card.widget.children
    return asked, letters, button, said, twin


def wrong_letter(item):
    return next(letter for letter in item.choices if letter != item.right)


@pytest.mark.parametrize("id", IDS)
def test_the_bank_is_sound(id):
    item = find_item(id)
    assert item.id == id and len(item.choices) == 4
    assert all(choice.misconception for letter, choice in item.choices.items() if letter != item.right)


def test_the_right_letter_varies_and_nothing_is_untested():
    in_files = [id for path in sorted(bank_dir().glob("0[01].yaml")) for id in load_items(path)]
    assert in_files == IDS
    assert len({find_item(id).right for id in IDS}) > 1


@pytest.mark.parametrize("id", IDS)
def test_feedback_of_a_wrong_choice_does_not_name_the_right_one(id):
    item = find_item(id)
    card = quiz(id, answer=wrong_letter(item))
    assert card.feedback.startswith("✘") and item.explanation not in card.feedback
    assert item.choices[item.right].feedback not in card.feedback


def test_wrong_then_right_by_the_widget():
    card = quiz("01.q1")
    item = card.item
    asked, letters, button, said, twin = controls(card)
    assert letters.value is None and letters.description and button.description == "Answer"
    assert list(letters.options) == ["a", "b", "c", "d"]
    assert item.prompt[:20] in asked.value and 'aria-live="polite"' in said.value and "not answered yet" in said.value
    assert 'answer="a"' in twin.value or "answer=&quot;a&quot;" in twin.value
    letters.value = "a"
    button.click()
    assert "✘ a: not yet" in said.value and not button.disabled
    assert kept("01.q1") == {"answer": "a", "right": False, "tries": 1}
    letters.value = item.right
    button.click()
    assert f"✔ {item.right} is right" in said.value and item.cites in said.value
    assert kept("01.q1") == {"answer": "a", "right": True, "tries": 2}
    letters.value = "c"
    button.click()
    assert "✘ c" in said.value, "the others' feedback may still be read"
    assert kept("01.q1") == {"answer": "a", "right": True, "tries": 2}


def test_answer_without_a_choice():
    card = quiz("00.q1")
    *_, button, said, _ = controls(card)
    button.click()
    assert "Choose an answer first." in said.value and kept("00.q1") == {}


@pytest.mark.parametrize("answer", ["B", " b ", "b"])
def test_the_plain_twin(answer):
    assert "✔ b is right" in str(quiz("00.q1", answer=answer))
    assert kept("00.q1") == {"answer": "b", "right": True, "tries": 1}


@pytest.mark.parametrize("answer", ["e", "ab", 2, ["b"], True])
def test_an_answer_that_is_no_letter(answer):
    assert "is not one of the letters a, b, c, d. Nothing was stored." in str(quiz("00.q1", answer=answer))
    assert kept("00.q1") == {}


def test_without_a_front_end_the_text_has_it_all():
    shown = quiz("00.q2")._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    item = find_item("00.q2")
    assert item.prompt in shown["text/plain"] and 'quiz("00.q2", answer="a")' in shown["text/plain"]
    assert all(f"{letter}) {choice.text}" in shown["text/plain"] for letter, choice in item.choices.items())


@pytest.mark.parametrize("id", ["00.q9", "98.q1", "../x.q1", "", 5, None])
def test_an_unknown_card_is_said_not_raised(id, capfd):
    assert quiz(id) is None
    said = capfd.readouterr()
    assert f"There is no card {id!r}." in said.out and said.err == ""
    with pytest.raises(CourseError):
        find_item(id)


def test_an_answer_that_cannot_be_kept_is_still_judged(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    card = quiz("00.q1", answer="b")
    assert "✔ b is right" in card.feedback and "This answer was not kept." in card.feedback


def test_under_nbgrader_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    quiz("00.q1", answer="b")
    assert not state.progress_path().exists()


def changed(*path, value=None):
    """CARD with one value replaced, or taken out."""
    card = copy.deepcopy(CARD)
    place = card
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return card


@pytest.mark.parametrize(
    ("cards", "said"),
    [
        ([CARD, CARD], "77.q1 is there twice"),
        ([changed("id")], "number 1 has the id None"),
        ([changed("id", value="78.q1")], "number 1 has the id '78.q1'"),
        ([changed("kind", value="essay")], "77.q1 is of kind 'essay'"),
        ([changed("prompt")], "77.q1 has no prompt"),
        ([changed("cites")], "77.q1 has no cites"),
        ([changed("explanation", value=" ")], "77.q1 has no explanation"),
        ([changed("right")], "77.q1 has no right choice"),
        ([changed("right", value="c")], "77.q1 has no right choice"),
        ([changed("choices", "a")], "77.q1 has no choices a, b"),
        ([changed("choices", value=["a", "b"])], "77.q1 has no choices a, b"),
        ([changed("choices", value={"a": CARD["choices"]["a"], "c": {}})], "77.q1 has no choices a, b"),
        ([changed("choices", "a", value="this")], "77.q1, choice a, is not a mapping"),
        ([changed("choices", "a", "feedback")], "77.q1, choice a, has no feedback"),
        ([changed("choices", "b", "feedback")], "77.q1, choice b, has no feedback"),
        ([changed("choices", "b", "text", value=5)], "77.q1, choice b, has no text"),
        ([changed("choices", "a", "misconception")], "77.q1, choice a, has no misconception"),
        ([], "does not hold a list of cards"),
        ({"id": 1}, "does not hold a list of cards"),
        (["text"], "number 1 has the id None"),
    ],
)
def test_an_unsound_file_is_named_with_its_card(tmp_path, cards, said):
    path = tmp_path / "77.yaml"
    path.write_text(yaml.safe_dump(cards))
    with pytest.raises(CourseError) as error:
        load_items(path)
    assert error.value.what.startswith("77.yaml") and said in error.value.what and error.value.fix


def test_a_file_that_is_no_yaml(tmp_path):
    path = tmp_path / "77.yaml"
    path.write_text("- id: [")
    with pytest.raises(CourseError, match="77.yaml cannot be read as YAML"):
        load_items(path)


def test_a_sound_file(tmp_path):
    path = tmp_path / "77.yaml"
    path.write_text(yaml.safe_dump([CARD]))
    assert load_items(path)["77.q1"].choices["a"].misconception == "That it is this."
