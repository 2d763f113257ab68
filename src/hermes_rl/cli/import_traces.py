"""`hermes-rl import FILE…` (Write): turn logged conversations of other software into groups."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json

if TYPE_CHECKING:
    from hermes_rl.interop.traces.importer import ImportReport

FORMATS = ("atif", "claude-code", "langsmith", "langfuse", "otel", "anthropic", "openai")


@click.command("import", context_settings={"max_content_width": 110})
@click.argument(
    "paths", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write groups to this JSONL file.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Select the format.", show_default="detected for each file"
)
@click.option(
    "--group-by",
    default="prompt",
    show_default=True,
    metavar="prompt|trace|FIELD",
    help="Group traces with the same prompt, put each in its own group, or group by a field such as metadata.task.",
)
@click.option(
    "--score",
    metavar="FIELD",
    help="Take the score from this field, such as scores.correct.",
    show_default="score or reward, else unscored",
)
@click.option(
    "--eval-share",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Mark this share of the items as held out, chosen by a hash of the item.",
)
@click.option("--keep-secrets", is_flag=True, help="Keep keys, tokens and passwords instead of redacting them.")
@click.option("--overwrite", is_flag=True, help="Replace the output file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")  # fmt: skip
def import_traces(
    paths: tuple[Path, ...], out: Path, form: str | None, group_by: str, score: str | None, eval_share: float,
    keep_secrets: bool, overwrite: bool, as_json: bool,
) -> int:  # fmt: skip
    """Turn logged conversations into a file of groups, to view, rescore or export.

    Reads OpenAI chat JSONL, Anthropic messages, Claude Code sessions, OpenTelemetry GenAI spans, exports of Langfuse
    and LangSmith, and ATIF, also the folder of a Harbor job. Secrets are redacted. Malformed records are counted and
    listed; the exit code is 1 if there were any.

    \b
    hermes-rl import ~/.claude/projects -o sessions.jsonl
    hermes-rl import langfuse.jsonl -o groups.jsonl --group-by metadata.task --score scores.correct --eval-share 0.1
    """  # noqa: D301 - click's own mark for lines that are kept
    from hermes_rl.interop.traces.importer import ImportOptions, import_groups
    from hermes_rl.interop.traces.records import trace_files
    from hermes_rl.store.export import count_lines

    options = ImportOptions(form, group_by, score, eval_share, keep_secrets)
    with progress("import", sum(map(count_lines, trace_files(paths)))) as shown:
        report = import_groups(paths, out, options, overwrite=overwrite, on_progress=shown.show)
    _show(report, out)
    if as_json:
        echo(fast_json.dumps({**report.as_dict(), "path": str(out)}))
    return 1 if report.malformed else 0


def _show(report: "ImportReport", out: Path) -> None:
    counts = f"{report.traces:,} traces from {report.records:,} records in {report.groups:,} groups"
    lines = [f"{counts}; {report.scored:,} scored, {report.eval_groups:,} groups held out"]
    lines += [f"  {count:,} {'file' if count == 1 else 'files'} of {name}" for name, count in report.files.items()]
    notes = {
        "records without messages, skipped": report.skipped,
        "traces without the field to group by, grouped by prompt": report.without_key,
        "documents without their token ids, because a secret was removed": report.without_tokens,
        "files in an unknown format": len(report.not_recognized),
        "malformed records": report.malformed,
    }
    lines += [f"  {count:,} {what}" for what, count in notes.items() if count]
    lines += [f"    {error}" for error in report.errors]
    for kind, found in report.secrets.as_dict().items():
        where = ", ".join(f"{count:,} in {place}" for place, count in found["where"].items())
        lines.append(
            f"  redacted: {kind}, {found['distinct']:,} distinct, {found['occurrences']:,} times ({where}), "
            f"for instance {', '.join(found['for_instance'])}"
        )
    screen = console()
    for line in [*lines, f"written: {out}"]:
        screen.print(line, soft_wrap=True)
