// Keys of the store. Numbers are big-endian, so that keys sort by them.
#ifndef MILEPOST_COORDINATOR_STORE_KEYS_H_
#define MILEPOST_COORDINATOR_STORE_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace milepost::coordinator {

// be64: of all jobs that ever were. Written with the first one that is deleted.
inline constexpr char kLastJobKey[] = "!last_job";

// Families of `meta` are told apart by their first byte.
inline constexpr char kFormatKey[] = "!format";                   // decimal text
inline constexpr char kNextCheckpointKey[] = "!next_checkpoint";  // be64: never used so far
inline constexpr char kJobPrefix = 'j';                           // be64(job) -> JobRecord
inline constexpr char kWorkerPrefix = 'w';                        // worker name -> WorkerRecord
inline constexpr char kQueuePrefix = 'q';                         // queue id -> QueueRecord
inline constexpr char kTokenPrefix = 't';                         // token name -> TokenRecord
inline constexpr char kJoinTokenPrefix = 'i';                     // name -> JoinTokenRecord
inline constexpr char kJoinedPrefix = 'k';                        // worker id -> JoinedWorkerRecord
inline constexpr char kTemplatePrefix = 'p';                      // template name -> TemplateRecord
inline constexpr char kDeliveryPrefix = 'h';                      // be64 -> WebhookDelivery
inline constexpr char kLogSummaryPrefix = 'l';                    // be64(job) -> LogSummary
inline constexpr char kManifestPrefix = 'm';    // be64(checkpoint) -> StoredManifest | le64(xxh3)
inline constexpr char kFlagsPrefix = 'f';       // be64(checkpoint) -> EncodeFlags
inline constexpr char kDeletedPrefix = 'd';     // be64(checkpoint) -> nothing: delete its chunks
inline constexpr char kRendezvousPrefix = 'r';  // be64(job) be64(generation) key -> value
inline constexpr char kChoicesPrefix = 'c';     // be64(job) -> what its ranks have chosen

// Whether records of this family are numbered by checkpoint.
inline bool IsOfCheckpoints(char prefix) {
  return prefix == kManifestPrefix || prefix == kFlagsPrefix || prefix == kDeletedPrefix;
}

inline void AppendBe64(uint64_t value, std::string* out) {
  for (int shift = 56; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}
inline void AppendBe32(uint32_t value, std::string* out) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}
// `bytes` has at least 8 bytes.
inline uint64_t ReadBe64(absl::string_view bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// prefix | be64(number)
inline std::string NumberKey(char prefix, int64_t number) {
  std::string key(1, prefix);
  AppendBe64(static_cast<uint64_t>(number), &key);
  return key;
}

// `bytes` has at least 4 bytes.
inline uint32_t ReadBe32(absl::string_view bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// In `chunks`: be64(checkpoint) | be32(stream) | be64(sequence)
inline std::string ChunkKey(int64_t checkpoint, int32_t stream, int64_t sequence) {
  std::string key;
  AppendBe64(static_cast<uint64_t>(checkpoint), &key);
  AppendBe32(static_cast<uint32_t>(stream), &key);
  AppendBe64(static_cast<uint64_t>(sequence), &key);
  return key;
}

// In `logs`: be64(job) | be64(sequence)
inline std::string LogKey(int64_t job, uint64_t sequence) {
  std::string key;
  AppendBe64(static_cast<uint64_t>(job), &key);
  AppendBe64(sequence, &key);
  return key;
}

// In `curves`: be64(job) | be32(block) | the curve's name
inline std::string CurveKey(int64_t job, uint32_t block, absl::string_view name) {
  std::string key;
  AppendBe64(static_cast<uint64_t>(job), &key);
  AppendBe32(block, &key);
  key.append(name.data(), name.size());
  return key;
}

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_KEYS_H_
