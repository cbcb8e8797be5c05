#include "client/serve/http_reply.h"

#include "client/serve/api_error.h"
#include "common/http/http_status.h"

namespace milepost::client {
namespace {

constexpr char kApiJson[] = "application/json";
// Of what is sent again: about an answer's time.
constexpr char kRetrySeconds[] = "5";

}  // namespace

HttpResponse ApiErrorResponse(const absl::Status& status) {
  HttpResponse response = {
      .status = HttpStatusOf(status), .content_type = kApiJson, .body = ErrorJson(status) + "\n"};
  if (response.status == 429 || response.status == 503) {
    response.headers = {{"Retry-After", kRetrySeconds}};
  }
  return response;
}

bool HttpReply::Left() const {
  return stream_ == nullptr ? answer_.ClientLeft() : stream_->ReaderLeft();
}

void HttpReply::Whole(std::string json) {
  answer_({.content_type = kApiJson, .body = std::move(json) + "\n"});
}

void HttpReply::Write(const std::string& chunk) {
  if (stream_ == nullptr) {
    stream_ = std::make_shared<HttpStream>();
    answer_({.content_type = "text/event-stream", .stream = stream_});
  }
  stream_->Write(chunk);
}

void HttpReply::End() {
  if (stream_ != nullptr) stream_->End();
}

}  // namespace milepost::client
