"""Register the operator's page where exactbatch is on the path without being installed, as in this project.

Where it is installed, its entry point registers the page. This file then leaves it alone, because Airflow reports a
plugin that is registered twice. It must not be called exactbatch.py: Airflow would import it under that name, in
place of the package.
"""

from importlib.metadata import entry_points

if not any(each.name == "exactbatch" for each in entry_points(group="airflow.plugins")):
    from exactbatch.airflow.page.plugin import ExactbatchPage as ExactbatchPage
