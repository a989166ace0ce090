"""`python -m lance_spark` is the console command."""

from lance_spark.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
