// What ranks send as WriteChunks: parsed as protobuf parses it, or refused where protobuf refuses,
// however the network cut it. The first byte says into what pieces.
#include "coordinator/rpc/chunk_message.h"

#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/check.h"

namespace milepost::coordinator {
namespace {

void Compare(absl::string_view bytes, size_t piece) {
  v1::WriteChunksRequest expected;
  const bool good = expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  absl::Cord cord;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    cord.Append(absl::MakeCordFromExternal(bytes.substr(at, piece), [] {}));
  }
  ChunkMessage message;
  MP_CHECK(ParseChunkMessage(cord, &message).ok() == good);
  if (!good) return;
  MP_CHECK(message.request.chunk().data().empty());
  if (message.request.has_chunk()) {
    message.request.mutable_chunk()->set_data(std::string(message.data));
  }
  MP_CHECK(google::protobuf::util::MessageDifferencer::Equals(message.request, expected));
}

}  // namespace
}  // namespace milepost::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  milepost::coordinator::Compare({reinterpret_cast<const char*>(data) + 1, size - 1},
                                 size_t{1} + data[0]);
  return 0;
}
