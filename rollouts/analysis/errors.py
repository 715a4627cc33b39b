"""What can be wrong with the input of an analysis; each class names one thing."""


class AnalysisError(ValueError):
    """The numbers handed to the analysis cannot be judged."""


class NoGuardrails(AnalysisError):
    """A wave was to be judged by no guardrail at all."""


class UnitMismatch(AnalysisError):
    """Two inputs do not describe the same units."""


class InvalidSample(AnalysisError):
    """A count, an exposure or a share lies outside what is possible."""


class InvalidLevel(AnalysisError):
    """An error level or an elapsed share lies outside its range."""


class ScoreOverflow(AnalysisError):
    """Integer scores are too large to be summed exactly in float64."""


class InvalidPolicy(AnalysisError):
    """A policy asks for what cannot be judged."""


class InvalidState(AnalysisError):
    """A stored state cannot be read back."""


class NoLooks(AnalysisError):
    """An evaluation was asked for no look at all."""


class EmptyArm(AnalysisError):
    """A comparison lacks a canary or a control."""


class UnsupportedMetric(AnalysisError):
    """A policy names a metric that has no estimator."""
