"""`exactbatch archive`: drivers start faster."""

from exactbatch.batch.spark.class_archive import archive_folder, build_archive
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.progress import waiting


def archive(as_json: AsJson = False) -> None:
    """Archive the classes of Spark's JVM, so that drivers start faster. Does nothing if the archive exists."""
    with waiting("Starting Spark to record its classes (half a minute, once)"):
        file, built = build_archive(archive_folder())
    if as_json:
        print_json({"file": file, "built": built, "bytes": file.stat().st_size})
        return
    size = file.stat().st_size // 10**6
    out.print(f"The archive {'is' if built else 'was already'} in {file} ({size} MB).", markup=False)
