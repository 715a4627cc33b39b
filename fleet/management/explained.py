"""A command whose help ends in words and examples that keep their lines."""

import argparse
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser


class ExplainedCommand(BaseCommand):
    """Prints `epilog` after its options, as it was written."""

    epilog: ClassVar[str]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=self.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )
