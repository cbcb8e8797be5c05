// A message's bytes as gRPC received them, without a copy.
//
//   grpc::ByteBuffer bytes;
//   while (reader->Read(&bytes)) Parse(CordOf(bytes));
//
// Pure.
#ifndef MILEPOST_COORDINATOR_RPC_BYTE_BUFFER_CORD_H_
#define MILEPOST_COORDINATOR_RPC_BYTE_BUFFER_CORD_H_

#include <grpcpp/support/byte_buffer.h>

#include "absl/strings/cord.h"

namespace milepost::coordinator {

// It keeps the memory of the buffer's slices, of which it copies the small ones. Empty where the
// buffer cannot be read.
absl::Cord CordOf(const grpc::ByteBuffer& buffer);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_BYTE_BUFFER_CORD_H_
