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

bool IsToken(absl::string_view line) {
  return line.size() <= kMostTokenBytes && absl::StartsWith(line, kPrefix) &&
         std::all_of(line.begin(), line.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

absl::StatusOr<JoinToken> ParseJoinToken(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t end = text.find('\n');
  JoinToken token;
  token.secret = std::string(absl::StripAsciiWhitespace(text.substr(0, end)));
  if (!IsToken(token.secret)) {
    return absl::InvalidArgumentError(
        "the first line is no join token (mpj_...), as `milepost worker token create` prints it");
  }
  if (end == absl::string_view::npos) return token;
  token.authority = std::string(absl::StripAsciiWhitespace(text.substr(end))) + "\n";
  if (ReadCertificate(token.authority).ok()) return token;
  return absl::InvalidArgumentError(
      "what follows the join token is no certificate in PEM form, of the coordinator's authority");
}

}  // namespace milepost::worker
