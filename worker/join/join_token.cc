#include "worker/join/join_token.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/pki/certificate.h"

namespace milepost::worker {
namespace {

constexpr absl::string_view kPrefix = "mpj_";
constexpr size_t kMostTokenBytes = 256;
constexpr absl::string_view kAccountPrefix = "eyJ";  // {" in base64
constexpr size_t kMostAccountTokenBytes = 8 << 10;

bool HasOnly(absl::string_view line, absl::string_view others) {
  return std::all_of(line.begin(), line.end(), [&](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(others, c);
  });
}

bool IsToken(absl::string_view line) {
  if (absl::StartsWith(line, kAccountPrefix)) {
    return line.size() <= kMostAccountTokenBytes && HasOnly(line, "-_.") &&
           std::count(line.begin(), line.end(), '.') == 2;
  }
  return line.size() <= kMostTokenBytes && absl::StartsWith(line, kPrefix) && HasOnly(line, "_");
}

}  // namespace

absl::StatusOr<JoinToken> ParseJoinToken(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t end = text.find('\n');
  JoinToken token;
  token.secret = std::string(absl::StripAsciiWhitespace(text.substr(0, end)));
  if (!IsToken(token.secret)) {
    return absl::InvalidArgumentError(
        "the first line is no join token (mpj_...), as `milepost worker token create` prints it, "
        "nor the token of a service account, as Kubernetes puts it into a pod");
  }
  if (end == absl::string_view::npos) return token;
  token.authority = std::string(absl::StripAsciiWhitespace(text.substr(end))) + "\n";
  if (ReadCertificate(token.authority).ok()) return token;
  return absl::InvalidArgumentError(
      "what follows the join token is no certificate in PEM form, of the coordinator's authority");
}

}  // namespace milepost::worker
