// Scans the members of a tar archive in memory: ustar, with GNU's and pax's long names and sizes.
//
//   TarScanner scanner(bytes);
//   TarMember member;
//   while (true) {
//     MP_ASSIGN_OR_RETURN(bool more, scanner.Next(&member));
//     if (!more) break;
//     Use(member.name, bytes.substr(member.offset, member.size));
//   }
//
// It reads only headers, not the members' contents. INVALID_ARGUMENT, with the byte offset: the
// archive is malformed. This includes an archive without its end mark, as a truncated one is.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_TAR_H_
#define MILEPOST_ENGINE_DATA_IMAGES_TAR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::data {

struct TarMember {
  std::string name;
  int64_t offset = 0;  // of the member's bytes
  int64_t size = 0;
  bool regular = false;  // otherwise a folder, a link or a device, without bytes
};

inline constexpr int64_t kTarBlock = 512;
inline constexpr int64_t kMaxTarNameBytes = 4096;

class TarScanner {
 public:
  // `bytes` must outlive the scanner.
  explicit TarScanner(absl::string_view bytes) : bytes_(bytes) {}

  // False at the archive's end. After an error, call nothing more.
  absl::StatusOr<bool> Next(TarMember* member);

 private:
  // What a pax header, or GNU's long name, says about the next member.
  struct Override {
    std::optional<std::string> name;
    std::optional<int64_t> size;
  };
  // Reads the header block at `at_`: fills in its member and returns the type.
  absl::StatusOr<char> Header(TarMember* member) const;
  absl::Status ReadPax(const TarMember& header, Override* override) const;
  absl::Status ReadLongName(const TarMember& header, Override* override) const;
  absl::Status CheckInside(const TarMember& member) const;
  absl::Status Malformed(absl::string_view what) const;

  absl::string_view bytes_;
  int64_t at_ = 0;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_TAR_H_
