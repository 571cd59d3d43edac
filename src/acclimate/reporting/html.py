def render(runs, title="x"):
    return "<p>"
