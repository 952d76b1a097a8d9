import json
from datetime import datetime, timedelta

import pytest

from helpers import state
from helpers.errors import CourseError
from helpers.widgets import predict as module
from helpers.widgets.predict import predict

QUESTION = "How many <processes> will there be?"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setattr(module, "_revealed", set())


def ask(**more):
    return predict("01.p1", QUESTION, **{"choices": [1, 2, 5], **more})


def stored():
    return {id: entry["answer"] for id, entry in state.read_progress()["predictions"].items()}


def controls(prediction):
    asked, control, button, said, twin = prediction.widget.children
    return control, button, said, twin


def test_choose_and_commit():
    prediction = ask()
    control, button, said, twin = controls(prediction)
    assert control.value is None, "nothing is chosen beforehand"
    assert "not answered yet" in said.value and 'aria-live="polite"' in said.value and "answer=5" in twin.value
    control.value = 2
    assert stored() == {}, "choosing is not committing"
    button.click()
    assert stored() == {"01.p1": 2}
    assert f"You predicted 2 (committed {datetime.now():%H:}" in said.value
    assert control.disabled and button.disabled and twin.value == ""


def test_commit_without_a_choice_stores_nothing():
    control, button, said, _ = controls(ask())
    button.click()
    assert stored() == {} and "Choose an answer first." in said.value and not button.disabled


def test_the_question_and_the_controls_have_words():
    prediction = ask()
    assert "How many &lt;processes&gt;" in prediction.widget.children[0].value
    control, button, *_ = controls(prediction)
    assert control.description and button.description == "Commit"


def test_a_rerun_shows_the_same_and_changes_nothing():
    ask(answer=2)
    before = state.progress_path().read_text()
    for again in (ask(), ask(answer=2)):
        assert "You predicted 2" in str(again) and again.note == ""
        assert "text/html" in again._repr_mimebundle_()
    other = ask(answer=5)
    assert "You predicted 2" in str(other) and "so 5 was not stored" in str(other)
    assert state.progress_path().read_text() == before


def test_a_second_open_widget_cannot_overwrite():
    first, second = ask(), ask()
    for prediction, answer in ((first, 1), (second, 5)):
        control, button, said, _ = controls(prediction)
        control.value = answer
        button.click()
    assert stored() == {"01.p1": 1}
    assert "You predicted 1" in said.value and "so 5 was not stored" in said.value


@pytest.mark.parametrize("answer", ["2", 3, True, 2.0, [2], {"a": 1}, float("nan")])
def test_an_answer_that_is_no_choice_is_said_and_not_stored(answer):
    prediction = ask(answer=answer)
    assert stored() == {} and "is not one of the choices. Choose from 1, 2, 5. Nothing was stored." in str(prediction)


@pytest.mark.parametrize("answer", [None, ..., ""])
def test_no_answer_asks(answer):
    assert "not answered yet" in str(ask(answer=answer)) and stored() == {}


def test_choices_in_words():
    predict("01.p2", "Which?", choices=["retried", "lost"], answer="lost")
    assert stored() == {"01.p2": "lost"}
    assert str(predict("01.p2").reveal("retried")) == "✘ you predicted: lost. It was: retried"


@pytest.mark.parametrize(("typed", "kept"), [("3", 3), (" 2.5 ", 2.5), (7, 7), (0, 0)])
def test_a_free_number(typed, kept):
    prediction = predict("01.p3", "How long?")
    control, button, *_ = controls(prediction)
    if isinstance(typed, str):
        control.value = typed
        button.click()
    else:
        predict("01.p3", "How long?", answer=typed)
    assert stored() == {"01.p3": kept} and type(stored()["01.p3"]) is type(kept)


@pytest.mark.parametrize("typed", ["many", "nan", "inf", "1,5"])
def test_a_free_answer_that_is_no_number(typed):
    control, button, said, _ = controls(predict("01.p3", "How long?"))
    control.value = typed
    button.click()
    assert stored() == {} and "is not a number" in said.value and not button.disabled


def test_reveal():
    ask(answer=2)
    assert str(predict("01.p1").reveal(2)) == "✔ as you predicted: 2"
    assert str(predict("01.p1").reveal(1)) == "✘ you predicted: 2. It was: 1"
    assert "✘ you predicted: 2. It was: &lt;1" in predict("01.p1").reveal("<1")._repr_html_()
    assert 'role="status"' in predict("01.p1").reveal(2)._repr_html_()


def test_after_the_reveal_it_cannot_be_made_any_more():
    prediction = ask()
    control, button, said, _ = controls(prediction)
    assert str(predict("01.p1").reveal(2)) == "· not answered yet. It was: 2"
    control.value = 2
    button.click()
    assert stored() == {} and "The outcome was shown before you predicted." in said.value and button.disabled
    assert "The outcome was shown before you predicted." in str(ask(answer=2)) and stored() == {}


def test_after_the_reveal_what_was_committed_stays():
    ask(answer=1)
    predict("01.p1").reveal(2)
    assert "You predicted 1" in str(ask(answer=2)) and stored() == {"01.p1": 1}


def test_an_earlier_day_is_shown_with_its_date():
    ask(answer=2)
    day = datetime.now().astimezone() - timedelta(days=40)
    state.update_progress(
        lambda progress: progress["predictions"]["01.p1"].update(at=day.isoformat(timespec="seconds"))
    )
    assert f"committed {day:%Y-%m-%d %H:%M}" in str(ask())
    state.update_progress(lambda progress: progress["predictions"]["01.p1"].update(at="yesterday"))
    assert "committed yesterday" in str(ask())


def test_without_a_front_end_the_text_has_it_all():
    shown = ask()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert QUESTION in shown["text/plain"] and "Choose from 1, 2, 5." in shown["text/plain"]
    assert "answer=5" in shown["text/plain"]


def test_a_corrupt_progress_file_is_kept_and_the_answer_taken(capfd):
    state.progress_path().parent.mkdir()
    state.progress_path().write_text("{")
    ask(answer=2)
    assert stored() == {"01.p1": 2} and capfd.readouterr().err == ""
    assert len(list(state.state_dir().glob("*.corrupt-*"))) == 1


def test_a_state_directory_that_cannot_be_used_never_raises(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    prediction = ask(answer=2)
    assert "Nothing was stored." in str(prediction) and prediction._repr_mimebundle_()
    assert "It was 2. Your prediction cannot be read" in str(predict("01.p1").reveal(2))


def test_under_nbgrader_nothing_is_read_or_kept(monkeypatch):
    ask(answer=2)
    before = json.loads(state.progress_path().read_text())
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert "not answered yet" in str(predict("01.p1").reveal(2))
    predict("01.p9", "?", choices=[1, 2], answer=1)
    assert json.loads(state.progress_path().read_text()) == before


@pytest.mark.parametrize("choices", [[], [1], [1, 1], [1, "1"]])
def test_an_unsound_question_is_the_authors_error(choices):
    with pytest.raises(CourseError, match="at least two"):
        predict("01.p1", "?", choices=choices)
