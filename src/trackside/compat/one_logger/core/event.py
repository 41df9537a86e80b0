"""Events of spans, as exporters get them and as a job makes them."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from trackside.compat.one_logger._enums import StrEnum, text_of
from trackside.compat.one_logger.core.attributes import Attribute, Attributes
from trackside.compat.one_logger.core.exceptions import assert_that
from trackside.compat.one_logger.core.time import TracingTimestamp

if TYPE_CHECKING:
    from typing_extensions import Self

EventName: TypeAlias = str | enum.Enum


class StandardEventName(StrEnum):
    """Names of events that any span may have."""

    SPAN_START = "span_start"
    SPAN_STOP = "span_stop"
    ERROR = "error"
    TELEMETRY_DATA_ERROR = "telemetry_data_error"


class StandardEventAttributeName(StrEnum):
    """Names of attributes that any event may have."""

    TIMESTAMP_MSEC = "timestamp_msec"
    ERROR_MESSAGE = "error_message"
    EXCEPTION_TYPE = "exception_type"
    EXCEPTION_MESSAGE = "exception_message"
    EXCEPTION_TRACEBACK = "exception_traceback"
    TELEMETRY_DATA_ERROR_TYPE = "telemetry_data_error_type"


class Event:
    """A moment within a span: a name, a timestamp, and attributes, of which ``timestamp_msec`` is always one."""

    def __init__(self, name: EventName, timestamp: TracingTimestamp, attributes: Attributes | None = None) -> None:
        self.name = name
        self.timestamp = timestamp
        self.attributes: Attributes = Attributes() if attributes is None else attributes
        self.attributes.add(StandardEventAttributeName.TIMESTAMP_MSEC.value, timestamp.milliseconds_since_epoch)

    @property
    def name_str(self) -> str:
        """The name as text."""
        return text_of(self.name)

    @classmethod
    def create(
        cls, name: EventName, attributes: Attributes | None = None, timestamp: TracingTimestamp | None = None
    ) -> Event:
        """Return an event of the present or the given time."""
        return Event(name, TracingTimestamp.now() if timestamp is None else timestamp, attributes)

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {
            "name": self.name_str,
            "timestamp": self.timestamp.to_json(),
            "attributes": self.attributes.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """
        Return the event that `to_json` wrote.

        Raises:
            OneLoggerError: if the name or the timestamp is missing.
        """
        assert_that(data.get("name") and data.get("timestamp"), f"{data!r} lacks a name or a timestamp")
        kind = ErrorEvent if data["name"] == StandardEventName.ERROR else Event
        made = kind.__new__(kind)
        Event.__init__(
            made,
            data["name"],
            TracingTimestamp.from_json(data["timestamp"]),
            Attributes.from_json(data.get("attributes")),
        )
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (self.name_str, self.timestamp, self.attributes) == (other.name_str, other.timestamp, other.attributes)

    def __hash__(self) -> int:
        return hash((self.name_str, self.timestamp))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name_str!r} {self.attributes.to_json()}>"


class ErrorEvent(Event):
    """An error in the application: a message and, for an exception, its type, message and traceback."""

    def __init__(  # noqa: PLR0917  One Logger's own signature
        self,
        timestamp: TracingTimestamp,
        error_message: str,
        exception_type: str | None = None,
        exception_message: str | None = None,
        exception_traceback: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        if exception_type is not None and exception_traceback is None:
            exception_traceback = traceback.format_exc()
        known = {
            StandardEventAttributeName.ERROR_MESSAGE: error_message,
            StandardEventAttributeName.EXCEPTION_TYPE: exception_type,
            StandardEventAttributeName.EXCEPTION_MESSAGE: exception_message,
            StandardEventAttributeName.EXCEPTION_TRACEBACK: exception_traceback,
        }
        fields = Attributes({name.value: value for name, value in known.items() if value is not None})
        fields.add_attributes(attributes or {})
        super().__init__(StandardEventName.ERROR, timestamp, fields)

    @property
    def error_message(self) -> str | None:
        """The description of the error."""
        return self.attributes.get_str_value(StandardEventAttributeName.ERROR_MESSAGE.value)

    @property
    def exception_type(self) -> str | None:
        """The name of the exception's class, if there was an exception."""
        return self.attributes.get_str_value(StandardEventAttributeName.EXCEPTION_TYPE.value)

    @property
    def exception_message(self) -> str | None:
        """The exception's message."""
        return self.attributes.get_str_value(StandardEventAttributeName.EXCEPTION_MESSAGE.value)

    @property
    def exception_traceback(self) -> str | None:
        """The exception's traceback."""
        return self.attributes.get_str_value(StandardEventAttributeName.EXCEPTION_TRACEBACK.value)

    @classmethod
    def create(  # type: ignore[override]  # One Logger's own signature
        cls, error_message: str, exception: BaseException | None = None, exception_traceback: str | None = None
    ) -> Self:
        """Return an error of the present time, with the details of *exception*."""
        if exception is None:
            return cls(TracingTimestamp.now(), error_message, exception_traceback=exception_traceback)
        if exception_traceback is None:
            exception_traceback = "".join(traceback.format_exception(exception))
        fields = (type(exception).__name__, str(exception), exception_traceback)
        return cls(TracingTimestamp.now(), error_message, *fields)

    def to_json(self) -> dict[str, Any]:
        """Return the error as plain data, with its details beside the attributes."""
        known = {
            "error_message": self.error_message,
            "exception_type": self.exception_type,
            "exception_message": self.exception_message,
            "exception_traceback": self.exception_traceback,
        }
        return {**super().to_json(), **{name: value for name, value in known.items() if value is not None}}


class TelemetryDataError(Event):
    """The telemetry itself is incomplete."""

    class ErrorType(StrEnum):
        """The extent of the missing telemetry."""

        NO_TELEMETRY_DATA = "no_telemetry_data"
        INCOMPLETE_TELEMETRY_DATA = "incomplete_telemetry_data"

    def __init__(
        self,
        timestamp: TracingTimestamp,
        error_type: ErrorType,
        error_message: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        fields = Attributes({StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE.value: error_type.value})
        if error_message is not None:
            fields.add(StandardEventAttributeName.ERROR_MESSAGE.value, error_message)
        fields.add_attributes(attributes or {})
        super().__init__(StandardEventName.TELEMETRY_DATA_ERROR, timestamp, fields)
        self.error_type = error_type
        self.error_message = error_message

    @classmethod
    def create(  # type: ignore[override]  # One Logger's own signature
        cls, error_type: ErrorType, error_message: str | None = None, attributes: Mapping[str, Attribute] | None = None
    ) -> Self:
        """Return an error of the present time."""
        return cls(TracingTimestamp.now(), error_type, error_message, Attributes.merge(attributes))

    def to_json(self) -> dict[str, Any]:
        """Return the error as plain data, with its type and message beside the attributes."""
        return {**super().to_json(), "error_type": self.error_type.value, "error_message": self.error_message}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TelemetryDataError:
        """
        Return the error that `to_json` wrote.

        Raises:
            OneLoggerError: if the timestamp or the type is missing, or there is no such type.
        """
        known = {kind.value: kind for kind in cls.ErrorType}
        assert_that(data.get("timestamp"), f"{data!r} lacks a timestamp")
        assert_that(data.get("error_type") in known, f"{data!r} lacks an error_type, one of {', '.join(known)}")
        return TelemetryDataError(
            TracingTimestamp.from_json(data["timestamp"]),
            known[data["error_type"]],
            data.get("error_message"),
            Attributes.from_json(data.get("attributes")),
        )
