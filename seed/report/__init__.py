"""`sprout report`: runs as one HTML page that needs no network, or served while they train.

runs.py     which folders, under which names
curves.py   metrics and evaluations, thinned to a fixed number of points
    audit.py    trajectories with the scores of every token: picks.py chooses them, case.py describes one
data.py     all of it as one JSON object
page.py     that object inside assets/page.html with its style and scripts
serve.py    the same page over HTTP, refreshed
"""
