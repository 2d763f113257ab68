"""The SVG badge of an audit."""

from html import escape

from hermes_rl.validation.audit.report import COLOURS, AuditReport, Status

LABEL = "reward audit"
# Width of a character of 11 px Verdana, and the space around a text.
CHARACTER, SPACE = 6.2, 12


def badge(report: AuditReport) -> str:
    """Two fields: what it is, and the verdict in its colour."""
    counts, total = report.counts, len(report.records)
    if report.status is Status.DEFECT:
        text = f"{counts[Status.DEFECT]} of {total} with defects"
    elif report.status is Status.CANNOT:
        text = f"{counts[Status.CANNOT]} of {total} not audited"
    else:
        text = f"{total} sound"
    left, right = (round(len(part) * CHARACTER + SPACE) for part in (LABEL, text))
    width = left + right
    title = escape(f"{LABEL}: {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">'
        f"<title>{title}</title>"
        f'<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#555"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLOURS[report.status]}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14" textLength="{left - SPACE}">{LABEL}</text>'
        f'<text x="{left + right / 2}" y="14" textLength="{right - SPACE}">{escape(text)}</text></g></svg>\n'
    )
