#include "common/pki/digest.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace milepost {

void Sha256Stream::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  MP_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256Stream::Add(absl::string_view piece) {
  MP_CHECK(EVP_DigestUpdate(context_.get(), piece.data(), piece.size()) == 1);
}

std::string Sha256Stream::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  MP_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(digest), size));
}

absl::StatusOr<std::string> Sha256OfFile(int fd) {
  constexpr size_t kPiece = size_t{1} << 20;
  Sha256Stream digest;
  std::vector<char> piece(kPiece);
  for (off_t offset = 0;;) {
    const ssize_t got = pread(fd, piece.data(), piece.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read a file for its digest");
    if (got == 0) return digest.Hex();
    digest.Add({piece.data(), static_cast<size_t>(got)});
    offset += got;
  }
}

}  // namespace milepost
