"""
What people look at: answers made of what handlers know.

Imports only `trackside.handlers` and `trackside.events`.
"""

from trackside.views._build import read_report
from trackside.views._compare import BETTER, SAME, WORSE, Comparison, Row, Selected, compare
from trackside.views._finding import Finding, Verdict
from trackside.views._html import report_page
from trackside.views._report import Report
from trackside.views._runs import DIED, ENDED, UNKNOWN, Attempt, Process, Run, RunsReport, Session, read_runs
from trackside.views._top import Top, TopView
from trackside.views._top import line as top_line
from trackside.views._trace import Traced, write_trace

__all__ = [
    "BETTER",
    "DIED",
    "ENDED",
    "SAME",
    "UNKNOWN",
    "WORSE",
    "Attempt",
    "Comparison",
    "Finding",
    "Process",
    "Report",
    "Row",
    "Run",
    "RunsReport",
    "Selected",
    "Session",
    "Top",
    "TopView",
    "Traced",
    "Verdict",
    "compare",
    "read_report",
    "read_runs",
    "report_page",
    "top_line",
    "write_trace",
]
