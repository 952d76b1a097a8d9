"""nbgrader's settings for this course, read by `course grade`, `nbgrader`, and JupyterLab's grading extensions."""

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearOutput,
    GetGrades,
    LimitOutput,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)

from helpers.grading.nbgrader_ext import (
    MendCells,
    NormalizeNotebook,
    RedactHidden,
    RobustExecute,
    StderrIsNotFailure,
    safe_markdown,
)
from helpers.state import course_root

c = get_config()  # noqa: F821 (nbgrader puts it here)
grading = course_root() / "grading"

c.CourseDirectory.root = str(course_root())
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.submitted_directory = "grading/submitted"
c.CourseDirectory.autograded_directory = "grading/autograded"
c.CourseDirectory.feedback_directory = "grading/feedback"
c.CourseDirectory.db_url = f"sqlite:///{grading / 'gradebook.db'}"
# what stands here is neither released nor copied beside a submission
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback", ".*", "hidden.py"]
c.Exchange.root = str(grading / "exchange")

c.GenerateAssignment.preprocessors = [
    NormalizeNotebook,
    *GenerateAssignment.class_traits()["preprocessors"].default(),
]
# an answer's template stays as it is; nbgrader's own stub would raise behind it, and stop Run All
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE"}
c.Autograde.sanitize_preprocessors = [ClearOutput, MendCells, OverwriteKernelspec, OverwriteCells, CheckCellMetadata]
c.Autograde.autograde_preprocessors = [
    RobustExecute,
    StderrIsNotFailure,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]
c.LimitOutput.max_lines = 200
c.GenerateFeedback.preprocessors = [RedactHidden, ClearHiddenTests, GetGrades, CSSHTMLHeaderPreprocessor]
c.HTMLExporter.filters = {"markdown2html": safe_markdown}
