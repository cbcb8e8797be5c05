#include "common/http/http_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/http/http_peer.h"

namespace milepost {
namespace {

constexpr size_t kStreamBlock = 16 << 10;

// What every answer says besides: nothing here is to be framed, guessed at or kept.
constexpr const char* kHeaders[][2] = {{"X-Content-Type-Options", "nosniff"},
                                       {"X-Frame-Options", "DENY"},
                                       {"Cache-Control", "no-store"},
                                       {"Referrer-Policy", "no-referrer"}};

bool IsRead(const char* method) {
  return std::strcmp(method, MHD_HTTP_METHOD_GET) == 0 ||
         std::strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
}

std::string Header(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

MHD_Result AddValue(void* values, MHD_ValueKind, const char* key, const char* value) {
  static_cast<std::vector<std::pair<std::string, std::string>>*>(values)->emplace_back(
      key, value == nullptr ? "" : value);
  return MHD_YES;
}

// Two of a kind, or a number in a form of its own, may mean one thing here and another to a proxy
// before us (RFC 9110, 8.6; RFC 9112, 3.2).
bool IsAmbiguous(MHD_Connection* connection) {
  std::vector<std::pair<std::string, std::string>> headers;
  MHD_get_connection_values(connection, MHD_HEADER_KIND, AddValue, &headers);
  int hosts = 0;
  int lengths = 0;
  for (const auto& [name, value] : headers) {
    if (absl::EqualsIgnoreCase(name, MHD_HTTP_HEADER_HOST) && ++hosts > 1) return true;
    if (!absl::EqualsIgnoreCase(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) continue;
    const bool number =
        !value.empty() && std::all_of(value.begin(), value.end(), absl::ascii_isdigit);
    if (!number || ++lengths > 1) return true;
  }
  return false;
}

void AddHeaders(MHD_Response* response, const HttpResponse& answer) {
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
  for (const auto& [name, value] : kHeaders) {
    const bool replaced =
        std::any_of(answer.headers.begin(), answer.headers.end(),
                    [name = name](const auto& other) { return other.first == name; });
    if (!replaced) MHD_add_response_header(response, name, value);
  }
  for (const auto& [name, value] : answer.headers) {
    MHD_add_response_header(response, name.c_str(), value.c_str());
  }
}

}  // namespace

struct HttpAnswer::Once {
  explicit Once(std::function<bool()> its_left) : left(std::move(its_left)) {}
  ~Once() {
    if (take) take({.status = MHD_HTTP_INTERNAL_SERVER_ERROR, .body = "no answer\n"});
  }
  const std::function<bool()> left;
  absl::Mutex mutex;
  std::function<void(HttpResponse)> take;
};

HttpAnswer::HttpAnswer(std::function<void(HttpResponse)> take, std::function<bool()> left)
    : once_(std::make_shared<Once>(std::move(left))) {
  once_->take = std::move(take);
}

bool HttpAnswer::ClientLeft() const { return once_->left && once_->left(); }

void HttpAnswer::operator()(HttpResponse response) const {
  std::function<void(HttpResponse)> take;
  {
    absl::MutexLock lock(&once_->mutex);
    take.swap(once_->take);
  }
  if (take) take(std::move(response));
}

MHD_Result HttpExchange::Refuse(int status, const std::string& why) {
  if (options.refusal) return Queue(options.refusal(status, why));
  return Queue({.status = status, .body = why + "\n"});
}

MHD_Result HttpExchange::Queue(const HttpResponse& answer) {
  MHD_Response* queued = nullptr;
  if (answer.stream != nullptr) {
    answer.stream->Attach(connection);
    auto* held = new std::shared_ptr<HttpStream>(answer.stream);
    queued = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, kStreamBlock,
        [](void* its, uint64_t, char* buffer, size_t most) -> ssize_t {
          return (*static_cast<std::shared_ptr<HttpStream>*>(its))->Read(buffer, most);
        },
        held,
        [](void* its) {
          std::unique_ptr<std::shared_ptr<HttpStream>> last(
              static_cast<std::shared_ptr<HttpStream>*>(its));
          (*last)->Close();
        });
    if (queued == nullptr) delete held;
  } else {
    queued = MHD_create_response_from_buffer(
        answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  }
  if (queued == nullptr) return MHD_NO;
  AddHeaders(queued, answer);
  if (answer.status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(queued, MHD_HTTP_HEADER_ALLOW,
                            options.most_body_bytes > 0 ? "GET, HEAD, POST" : "GET, HEAD");
  }
  if (answer.status == MHD_HTTP_UNAUTHORIZED) {
    MHD_add_response_header(queued, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
  }
  const MHD_Result result = MHD_queue_response(connection, answer.status, queued);
  MHD_destroy_response(queued);
  return result;
}

// What is refused here is never read, and the connection ends.
MHD_Result HttpExchange::Head(const char* method) {
  const bool takes_body = options.most_body_bytes > 0;
  const bool post = std::strcmp(method, MHD_HTTP_METHOD_POST) == 0;
  if (!IsRead(method) && !(post && takes_body)) {
    return Refuse(MHD_HTTP_METHOD_NOT_ALLOWED,
                  takes_body ? "GET, HEAD and POST alone" : "GET and HEAD alone");
  }
  if (IsAmbiguous(connection)) {
    return Refuse(MHD_HTTP_BAD_REQUEST, "one Host, and one Content-Length of digits");
  }
  const std::string length = Header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
  const bool chunked = !Header(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING).empty();
  uint64_t bytes = 0;
  if (chunked || (!length.empty() && !absl::SimpleAtoi(length, &bytes)) ||
      (post && length.empty())) {
    return Refuse(MHD_HTTP_LENGTH_REQUIRED, "a Content-Length is needed");
  }
  const size_t most = post ? options.most_body_bytes : 0;
  if (bytes > most) {
    return Refuse(MHD_HTTP_CONTENT_TOO_LARGE, absl::StrCat("at most ", most, " bytes"));
  }
  return MHD_YES;
}

MHD_Result HttpExchange::Body(const char* data, size_t size) {
  if (body.size() + size > options.most_body_bytes) return MHD_NO;
  body.append(data, size);
  return MHD_YES;
}

HttpRequest HttpExchange::Request(const char* method, const char* path) {
  HttpRequest request{.method = method, .path = path, .body = std::move(body)};
  MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, AddValue, &request.query);
  request.authorization = Header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
  request.host = Header(connection, MHD_HTTP_HEADER_HOST);
  request.origin = Header(connection, MHD_HTTP_HEADER_ORIGIN);
  request.cookie = Header(connection, MHD_HTTP_HEADER_COOKIE);
  request.content_type = Header(connection, MHD_HTTP_HEADER_CONTENT_TYPE);
  request.accept = Header(connection, MHD_HTTP_HEADER_ACCEPT);
  request.fetch_site = Header(connection, "Sec-Fetch-Site");
  request.if_none_match = Header(connection, MHD_HTTP_HEADER_IF_NONE_MATCH);
  return request;
}

MHD_Result HttpExchange::End(const char* method, const char* path) {
  if (!handled) {
    handled = true;
    options.handler(Request(method, path),
                    HttpAnswer([self = shared_from_this()](HttpResponse its) { self->Take(its); },
                               [weak = weak_from_this()] {
                                 const auto self = weak.lock();
                                 return self != nullptr && self->ClientLeft();
                               }));
  }
  HttpResponse answer;
  {
    absl::MutexLock lock(&mutex);
    if (abandoned) return MHD_NO;
    if (!response.has_value()) {
      suspended = true;
      MHD_suspend_connection(connection);
      return MHD_YES;
    }
    answer = *std::move(response);
    response = HttpResponse();  // that there was one
    stream = answer.stream;
  }
  return Queue(answer);
}

void HttpExchange::Take(HttpResponse its_response) {
  std::shared_ptr<HttpStream> unread;
  {
    absl::MutexLock lock(&mutex);
    if (abandoned) {
      unread = std::move(its_response.stream);
    } else {
      response = std::move(its_response);
      // Until it goes on, the library neither touches nor frees the connection.
      if (suspended) MHD_resume_connection(connection);
      suspended = false;
    }
  }
  if (unread != nullptr) unread->Close();
}

bool HttpExchange::ClientLeft() {
  absl::MutexLock lock(&mutex);
  return abandoned || (suspended && PeerHasLeft(connection));
}

void HttpExchange::Abandon() {
  std::shared_ptr<HttpStream> unread;
  {
    absl::MutexLock lock(&mutex);
    abandoned = true;
    if (suspended) MHD_resume_connection(connection);
    suspended = false;
    unread = stream != nullptr || !response.has_value() ? stream : response->stream;
  }
  if (unread != nullptr) unread->Close();
}

}  // namespace milepost
