"""Dates and times as they are written everywhere in the product: year first, 24 hours, UTC."""

DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "Y-m-d H:i:s"
SHORT_DATE_FORMAT = DATE_FORMAT
SHORT_DATETIME_FORMAT = "Y-m-d H:i"
