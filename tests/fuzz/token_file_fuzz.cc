// Any bytes as the headers of token files and as Megatron's index: refused with a message, or
// sound.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "engine/data/llmc_header.h"
#include "engine/data/megatron_index.h"
#include "engine/data/npy_header.h"

namespace {

void CheckIndex(absl::string_view bytes) {
  const auto index = milepost::data::ParseMegatronIndex(bytes);
  if (!index.ok()) {
    MP_CHECK(!index.status().message().empty());
    return;
  }
  MP_CHECK(index->tokens >= 0 && index->sequences >= 0 && index->documents >= 0);
  MP_CHECK(34 + index->sequences * 12 + index->documents * 8 == static_cast<int64_t>(bytes.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)milepost::data::ParseNpyArrayHeader(bytes);
  const auto npy = milepost::data::ParseNpyHeader(bytes);
  MP_CHECK(!npy.ok() || (npy->elements >= 0 && npy->data_offset > 0));
  const auto llmc = milepost::data::ParseLlmcHeader(bytes);
  MP_CHECK(!llmc.ok() || llmc->tokens >= 0);
  CheckIndex(bytes);
  std::string framed("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18);  // what a fuzzer is slow to find
  framed.append(bytes.data(), bytes.size());
  CheckIndex(framed);
  return 0;
}
