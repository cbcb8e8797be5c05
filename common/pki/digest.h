// SHA-256 of what comes piece by piece, or lies in a file.
//
//   Sha256Stream digest;
//   digest.Add(piece);
//   const std::string hex = digest.Hex();   // 64 digits, in lower case
#ifndef MILEPOST_COMMON_PKI_DIGEST_H_
#define MILEPOST_COMMON_PKI_DIGEST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace milepost {

// Movable; not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  void Add(absl::string_view piece);
  // Of all that was added. Once; nothing can be added after it.
  std::string Hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// The digest of a file from its beginning to its end, wherever it is read from now. Blocks on the
// disk. Thread-safe. The error that errno gives: it cannot be read.
absl::StatusOr<std::string> Sha256OfFile(int fd);

}  // namespace milepost

#endif  // MILEPOST_COMMON_PKI_DIGEST_H_
