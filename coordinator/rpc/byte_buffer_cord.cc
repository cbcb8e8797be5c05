#include "coordinator/rpc/byte_buffer_cord.h"

#include <grpc/slice.h>

#include <vector>

#include "absl/strings/string_view.h"

namespace milepost::coordinator {
namespace {

// A small slice has its bytes in itself: they go where it goes, and with it.
constexpr size_t kCopied = 256;
static_assert(kCopied > GRPC_SLICE_INLINED_SIZE);

}  // namespace

absl::Cord CordOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  absl::Cord cord;
  if (!buffer.Dump(&slices).ok()) return cord;
  for (const grpc::Slice& slice : slices) {
    const absl::string_view bytes(reinterpret_cast<const char*>(slice.begin()), slice.size());
    if (bytes.size() <= kCopied) {
      cord.Append(bytes);
    } else {
      cord.Append(absl::MakeCordFromExternal(bytes, [slice] {}));
    }
  }
  return cord;
}

}  // namespace milepost::coordinator
