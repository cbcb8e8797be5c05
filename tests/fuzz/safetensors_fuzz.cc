// Any bytes as a safetensors file and as an index: refused with a message, or sound.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "engine/state/safetensors_header.h"
#include "engine/state/safetensors_index.h"

namespace milepost::state {
namespace {

void CheckHeader(absl::string_view bytes) {
  const auto header = ParseSafetensorsHeader(bytes, static_cast<int64_t>(bytes.size()));
  if (!header.ok()) {
    MP_CHECK(!header.status().message().empty());
    return;
  }
  int64_t at = 0;
  for (const SafetensorsTensor& tensor : header->tensors) {
    MP_CHECK(tensor.begin == at);
    MP_CHECK(tensor.end - at == tensor.elements * SafetensorsElementBytes(tensor.dtype));
    at = tensor.end;
  }
  MP_CHECK(header->data_offset + at == static_cast<int64_t>(bytes.size()));
  // What can be read can be written, and reads as the same.
  std::vector<SafetensorsTensor> tensors = header->tensors;
  if (!LayOutSafetensors(&tensors).ok()) return;  // an empty name can be read, not written
  const auto written = FormatSafetensorsHeader(tensors);
  MP_CHECK(written.ok());
  const auto again = ParseSafetensorsHeader(*written, static_cast<int64_t>(written->size()) + at);
  MP_CHECK(again.ok() && again->tensors.size() == tensors.size());
}

}  // namespace
}  // namespace milepost::state

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  milepost::state::CheckHeader(bytes);
  // With a length that fits, so that the fuzzer need not find it.
  std::string framed(8, '\0');
  for (int i = 0; i < 8; ++i) framed[static_cast<size_t>(i)] = static_cast<char>(size >> (8 * i));
  framed.append(bytes.data(), bytes.size());
  milepost::state::CheckHeader(framed);
  (void)milepost::state::ParseSafetensorsIndex(bytes);
  return 0;
}
