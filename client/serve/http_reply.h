// A TextReply over HTTP. Internal to api_server.h.
#ifndef MILEPOST_CLIENT_SERVE_HTTP_REPLY_H_
#define MILEPOST_CLIENT_SERVE_HTTP_REPLY_H_

#include <memory>
#include <string>
#include <utility>

#include "client/serve/answer_request.h"
#include "common/http/http_server.h"

namespace milepost::client {

// An error's response, with the headers that belong to it.
HttpResponse ApiErrorResponse(const absl::Status& status);

// One thread at a time.
class HttpReply : public TextReply {
 public:
  explicit HttpReply(HttpAnswer answer) : answer_(std::move(answer)) {}
  ~HttpReply() override { End(); }

  bool Left() const override;
  void Fail(const absl::Status& status) override { answer_(ApiErrorResponse(status)); }
  void Whole(std::string json) override;
  void Write(const std::string& chunk) override;
  void End() override;

 private:
  const HttpAnswer answer_;
  std::shared_ptr<HttpStream> stream_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_HTTP_REPLY_H_
