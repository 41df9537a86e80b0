"""
Views of a job for people: the report and its verdict, runs, the live view, traces and comparisons.

Imports the handlers and the packages below them.
"""

from trackside.report._build import read_report
from trackside.report._compare import BETTER, SAME, WORSE, Comparison, Row, Selected, compare
from trackside.report._html import report_page
from trackside.report._plain_text import report_lines
from trackside.report._report import Finding, Report, Ruling, Verdict
from trackside.report._runs import AttemptOutline, ProcessOutline, RunOutline, RunsReport, SessionOutline, read_runs
from trackside.report._runs_page import run_pages
from trackside.report._top import Top, TopView
from trackside.report._top import line as top_line
from trackside.report._trace import Traced, write_trace

__all__ = [
    "BETTER",
    "SAME",
    "WORSE",
    "AttemptOutline",
    "Comparison",
    "Finding",
    "ProcessOutline",
    "Report",
    "Row",
    "Ruling",
    "RunOutline",
    "RunsReport",
    "Selected",
    "SessionOutline",
    "Top",
    "TopView",
    "Traced",
    "Verdict",
    "compare",
    "read_report",
    "read_runs",
    "report_lines",
    "report_page",
    "run_pages",
    "top_line",
    "write_trace",
]
