"""The jobs of `nsqd-spark`, one module each: report, export, replay, sql, and queues,
count, ship, which need no Spark.

job.py          arguments that select messages, error texts      progress.py  lines on stderr
json_bodies.py  bodies as JSON: a column, or a list of fields    ddl.py       schemas as text
report.py       arguments and files of the report; report_figures.py counts, report_page.py renders
growth.py       two looks compared, and times in words
charts.py       where bars and labels of the page stand; templates/ holds its HTML, CSS and script
Called by commands.py, or by spark-submit as scripts. May import read, write, ship and session.
"""
