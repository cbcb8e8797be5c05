"""What gRPC says of a failed call, as an exception of milepost.errors."""

from typing import Any, Dict, List, Optional

from milepost import errors
from milepost._client import schema

_DETAILS = "grpc-status-details-bin"
_WARNING = "milepost-warning-bin"
_PREFIX = "type.googleapis.com/google.rpc."
_MOST_WARNINGS = 16


def trailing(call: Any) -> Dict[str, Any]:
    """The trailing metadata of a call that has ended."""
    return {str(pair[0]): pair[1] for pair in (call.trailing_metadata() or ())}


def _details(metadata: Dict[str, Any]) -> Dict[str, Any]:
    """By type: "ErrorInfo", ..."""
    found: Dict[str, Any] = {}
    data = metadata.get(_DETAILS)
    if not data:
        return found
    try:
        for detail in type(schema.message("RpcStatus")).FromString(data).details:
            name = detail.type_url[len(_PREFIX) :]
            if detail.type_url.startswith(_PREFIX) and name in (
                "ErrorInfo",
                "RetryInfo",
                "BadRequest",
            ):
                found[name] = type(schema.message(name)).FromString(detail.value)
    except Exception:  # what protobuf raises has no common base; the status itself says enough
        pass
    return found


def _reason_in(text: str) -> str:
    """UNAUTHENTICATED has no details: its text begins with the reason."""
    word, colon, _ = text.partition(": ")
    return word if colon and word.isupper() and word.replace("_", "").isalpha() else ""


def remedy(text: str, tls: bool, address: str) -> str:
    """What to do about a connection that failed with gRPC's `text`."""
    if "certificate verify failed" in text.lower().replace("_", " "):
        return (
            "; its certificate is of no authority that is trusted here: is the `ca` of the login "
            "(MILEPOST_CA) that of this coordinator?"
        )
    if "Hostname Verification" in text:
        return (
            "; its certificate does not have that name: `milepost-coordinator init-pki --host` "
            "makes one that has"
        )
    if not tls and ("Socket closed" in text or "Connection reset" in text):
        return f"; if it has TLS: milepost auth login --coordinator {address} --ca FILE"
    return ""


def error_of(code: str, text: str, metadata: Dict[str, Any], called: str) -> errors.ClientError:
    """`called`: what errors call the coordinator."""
    details = _details(metadata)
    info = details.get("ErrorInfo")
    reason = info.reason if info is not None else ""
    subject = info.metadata["subject"] if info is not None and "subject" in info.metadata else ""
    if code == "UNAUTHENTICATED" and not reason:
        reason = _reason_in(text)
    message = f"{called}: {text}" if text else f"{called}: {code}"
    request = details.get("BadRequest")
    if code == "INVALID_ARGUMENT" and request is not None and request.field_violations:
        violations: List[errors.FieldViolation] = [
            errors.FieldViolation(one.field, one.description) for one in request.field_violations
        ]
        return errors.InvalidSpec(message, violations, reason=reason)
    kind = errors.BY_CODE.get(code, errors.ClientError)
    error = kind(message, code=code, reason=reason, subject=subject)
    error.retry_after = _retry_after(details.get("RetryInfo"))
    return error


def _retry_after(info: Optional[Any]) -> Optional[float]:
    if info is None:
        return None
    return float(info.retry_delay.seconds) + float(info.retry_delay.nanos) * 1e-9


class Warnings:
    """The coordinator's warnings about its store, each told once."""

    def __init__(self) -> None:
        self._told: List[str] = []

    def new(self, metadata: Dict[str, Any]) -> Optional[str]:
        """The warning in an answer's metadata, where it was not told yet."""
        data = metadata.get(_WARNING)
        if not data or len(self._told) >= _MOST_WARNINGS:
            return None
        text = data.decode(errors="replace") if isinstance(data, bytes) else str(data)
        if text in self._told:
            return None
        self._told.append(text)
        return text
