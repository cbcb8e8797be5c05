// A WriteChunksRequest as it comes from the network, without a copy of the chunk's bytes.
//
//   ChunkMessage message;
//   MP_RETURN_IF_ERROR(ParseChunkMessage(cord_of_slices, &message));
//   stream->Append(message.request.chunk(), message.data);
//
// All but `data` is protobuf's to parse: it gets
// the message without that field. So the result is what protobuf would make of the whole message.
// Pure.
#ifndef MILEPOST_COORDINATOR_RPC_CHUNK_MESSAGE_H_
#define MILEPOST_COORDINATOR_RPC_CHUNK_MESSAGE_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::coordinator {

struct ChunkMessage {
  v1::WriteChunksRequest request;  // without chunk.data
  absl::Cord data;                 // chunk.data; empty where there is no chunk
};

// INVALID_ARGUMENT: it is no such message.
absl::Status ParseChunkMessage(const absl::Cord& bytes, ChunkMessage* message);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_CHUNK_MESSAGE_H_
