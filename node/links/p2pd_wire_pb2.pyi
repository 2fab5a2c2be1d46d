from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("type", "connect", "stream_open", "stream_handler", "disconnect")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IDENTIFY: _ClassVar[Request.Type]
        CONNECT: _ClassVar[Request.Type]
        STREAM_OPEN: _ClassVar[Request.Type]
        STREAM_HANDLER: _ClassVar[Request.Type]
        LIST_PEERS: _ClassVar[Request.Type]
        DISCONNECT: _ClassVar[Request.Type]
        PERSISTENT_CONN_UPGRADE: _ClassVar[Request.Type]
    IDENTIFY: Request.Type
    CONNECT: Request.Type
    STREAM_OPEN: Request.Type
    STREAM_HANDLER: Request.Type
    LIST_PEERS: Request.Type
    DISCONNECT: Request.Type
    PERSISTENT_CONN_UPGRADE: Request.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    STREAM_OPEN_FIELD_NUMBER: _ClassVar[int]
    STREAM_HANDLER_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    type: Request.Type
    connect: ConnectRequest
    stream_open: StreamOpenRequest
    stream_handler: StreamHandlerRequest
    disconnect: DisconnectRequest
    def __init__(self, type: _Optional[_Union[Request.Type, str]] = ..., connect: _Optional[_Union[ConnectRequest, _Mapping]] = ..., stream_open: _Optional[_Union[StreamOpenRequest, _Mapping]] = ..., stream_handler: _Optional[_Union[StreamHandlerRequest, _Mapping]] = ..., disconnect: _Optional[_Union[DisconnectRequest, _Mapping]] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("peer", "addresses", "timeout_seconds")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    timeout_seconds: int
    def __init__(self, peer: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ..., timeout_seconds: _Optional[int] = ...) -> None: ...

class StreamOpenRequest(_message.Message):
    __slots__ = ("peer", "protocols", "timeout_seconds")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    protocols: _containers.RepeatedScalarFieldContainer[str]
    timeout_seconds: int
    def __init__(self, peer: _Optional[bytes] = ..., protocols: _Optional[_Iterable[str]] = ..., timeout_seconds: _Optional[int] = ...) -> None: ...

class StreamHandlerRequest(_message.Message):
    __slots__ = ("address", "protocols", "balanced")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    address: bytes
    protocols: _containers.RepeatedScalarFieldContainer[str]
    balanced: bool
    def __init__(self, address: _Optional[bytes] = ..., protocols: _Optional[_Iterable[str]] = ..., balanced: _Optional[bool] = ...) -> None: ...

class DisconnectRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    def __init__(self, peer: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("type", "error", "stream", "identify", "peers")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Response.Type]
        ERROR: _ClassVar[Response.Type]
    OK: Response.Type
    ERROR: Response.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    IDENTIFY_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    type: Response.Type
    error: ErrorResponse
    stream: StreamInfo
    identify: IdentifyResponse
    peers: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    def __init__(self, type: _Optional[_Union[Response.Type, str]] = ..., error: _Optional[_Union[ErrorResponse, _Mapping]] = ..., stream: _Optional[_Union[StreamInfo, _Mapping]] = ..., identify: _Optional[_Union[IdentifyResponse, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[PeerInfo, _Mapping]]] = ...) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class IdentifyResponse(_message.Message):
    __slots__ = ("peer", "addresses")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, peer: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("peer", "addresses")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, peer: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("peer", "address", "protocol")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    address: bytes
    protocol: bytes
    def __init__(self, peer: _Optional[bytes] = ..., address: _Optional[bytes] = ..., protocol: _Optional[bytes] = ...) -> None: ...

class HopMessage(_message.Message):
    __slots__ = ("type", "peer", "reservation", "limit", "status")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESERVE: _ClassVar[HopMessage.Type]
        CONNECT: _ClassVar[HopMessage.Type]
        STATUS: _ClassVar[HopMessage.Type]
    RESERVE: HopMessage.Type
    CONNECT: HopMessage.Type
    STATUS: HopMessage.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    type: HopMessage.Type
    peer: CircuitPeer
    reservation: Reservation
    limit: Limit
    status: int
    def __init__(self, type: _Optional[_Union[HopMessage.Type, str]] = ..., peer: _Optional[_Union[CircuitPeer, _Mapping]] = ..., reservation: _Optional[_Union[Reservation, _Mapping]] = ..., limit: _Optional[_Union[Limit, _Mapping]] = ..., status: _Optional[int] = ...) -> None: ...

class CircuitPeer(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    def __init__(self, id: _Optional[bytes] = ...) -> None: ...

class Reservation(_message.Message):
    __slots__ = ("expires_unix_seconds", "addresses")
    EXPIRES_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    expires_unix_seconds: int
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, expires_unix_seconds: _Optional[int] = ..., addresses: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("duration_seconds", "data_bytes")
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    duration_seconds: int
    data_bytes: int
    def __init__(self, duration_seconds: _Optional[int] = ..., data_bytes: _Optional[int] = ...) -> None: ...

class StopMessage(_message.Message):
    __slots__ = ("type", "peer", "limit", "status")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CONNECT: _ClassVar[StopMessage.Type]
        STATUS: _ClassVar[StopMessage.Type]
    CONNECT: StopMessage.Type
    STATUS: StopMessage.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    type: StopMessage.Type
    peer: CircuitPeer
    limit: Limit
    status: int
    def __init__(self, type: _Optional[_Union[StopMessage.Type, str]] = ..., peer: _Optional[_Union[CircuitPeer, _Mapping]] = ..., limit: _Optional[_Union[Limit, _Mapping]] = ..., status: _Optional[int] = ...) -> None: ...
