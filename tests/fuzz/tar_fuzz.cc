// Any bytes as a WebDataset shard: refused with a message, or entries that lie inside it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/check.h"
#include "engine/data/images/shard_index.h"
#include "engine/data/images/tar.h"

namespace {

using milepost::data::kTarBlock;

void CheckShard(absl::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  milepost::data::TarScanner scanner(bytes);
  milepost::data::TarMember member;
  int64_t members = 0;
  while (true) {
    const auto more = scanner.Next(&member);
    if (!more.ok()) MP_CHECK(!more.status().message().empty());
    if (!more.ok() || !*more) break;
    MP_CHECK(member.offset >= kTarBlock && member.size >= 0 && member.offset + member.size <= size);
    MP_CHECK(++members <= size / kTarBlock);
  }
  const auto entries = milepost::data::IndexShard(bytes);
  if (!entries.ok()) {
    MP_CHECK(!entries.status().message().empty());
    return;
  }
  for (const milepost::data::ShardEntry& entry : *entries) {
    MP_CHECK(entry.label >= 0 && entry.offset + int64_t{entry.size} <= size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckShard(bytes);
  // With checksums that fit, which a fuzzer is slow to find, and an end.
  std::string framed(bytes);
  framed.resize((size + kTarBlock - 1) / kTarBlock * kTarBlock);
  for (size_t at = 0; at < framed.size(); at += kTarBlock) {
    char* const field = framed.data() + at + 148;
    std::memset(field, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < kTarBlock; ++i) sum += static_cast<uint8_t>(framed[at + i]);
    std::snprintf(field, 8, "%06o", sum);
  }
  framed.resize(framed.size() + kTarBlock);
  CheckShard(framed);
  if (size <= 40) (void)milepost::data::ExpandBraces(std::string(bytes));
  return 0;
}
