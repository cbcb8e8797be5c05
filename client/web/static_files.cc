#include "client/web/static_files.h"

#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/web/page_files.h"
#include "common/pki/secret.h"

namespace milepost::client {
namespace {

// Nothing but what this server has, no script or style in the page itself, and no text that becomes
// part of the page in any other way than as text.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

struct File {
  absl::string_view content;
  std::string etag;
};

const std::map<std::string, File>& Files() {
  static const auto* files = [] {
    auto* made = new std::map<std::string, File>;
    for (const PageFile& file : PageFiles()) {
      const std::string digest = absl::BytesToHexString(Sha256(file.content));
      (*made)[absl::StrCat("/", file.name)] = {file.content,
                                               absl::StrCat("\"", digest.substr(0, 32), "\"")};
    }
    return made;
  }();
  return *files;
}

std::string TypeOf(absl::string_view path) {
  if (absl::EndsWith(path, ".js")) return "text/javascript; charset=utf-8";
  if (absl::EndsWith(path, ".css")) return "text/css; charset=utf-8";
  if (absl::EndsWith(path, ".svg")) return "image/svg+xml";
  return "text/html; charset=utf-8";
}

}  // namespace

HttpResponse AnswerFile(const HttpRequest& request) {
  const std::string path = request.path == "/" ? "/index.html" : request.path;
  const auto found = Files().find(path);
  if (found == Files().end()) return {.status = 404, .body = "not found\n"};
  HttpResponse response{.content_type = TypeOf(path),
                        .headers = {{"Content-Security-Policy", kPolicy},
                                    {"Cross-Origin-Opener-Policy", "same-origin"},
                                    {"Cross-Origin-Resource-Policy", "same-origin"},
                                    {"Cache-Control", "no-cache"},
                                    {"ETag", found->second.etag}}};
  if (request.if_none_match == found->second.etag) {
    response.status = 304;
  } else {
    response.body = std::string(found->second.content);
  }
  return response;
}

}  // namespace milepost::client
