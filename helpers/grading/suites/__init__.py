"""The questions: `lessonNN.py` holds those of a lesson, `exNN.py` those of an exercise, one `Suite` each."""
