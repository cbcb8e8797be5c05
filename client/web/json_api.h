// The coordinator's methods over HTTP. Requests and answers are JSON; streams are server-sent
// events.
//
//   JsonApi api(GenericClient(connection), {});
//   api.Answer("JobService/GetJob", request, caller, answer);
//
// The coordinator decides about rights and errors. Thread-safe; does not block.
#ifndef MILEPOST_CLIENT_WEB_JSON_API_H_
#define MILEPOST_CLIENT_WEB_JSON_API_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/api/generic_client.h"
#include "client/web/api_methods.h"
#include "client/web/calls.h"
#include "client/web/watches.h"
#include "common/http/http_server.h"

namespace milepost::client {

// The visitor for whom a call is made.
struct Caller {
  std::string token;      // empty: none is needed
  std::string principal;  // callers with the same principal share answers
  // False once the visitor's session is over; streams then end.
  std::function<bool()> may_go_on;
  // Called when the coordinator does not know the token, or no longer knows it.
  std::function<void()> refused;
};

HttpResponse JsonResponse(std::string json);
HttpResponse ErrorResponse(const absl::Status& status);

struct JsonApiOptions {
  CallOptions calls;
  WatchOptions watches;
};

class JsonApi {
 public:
  JsonApi(GenericClient coordinator, const JsonApiOptions& options);

  // `path`: the path of a method in ApiMethods.
  void Answer(absl::string_view path, const HttpRequest& request, const Caller& caller,
              const HttpAnswer& answer);
  Calls& calls() { return calls_; }
  Watches& watches() { return watches_; }

 private:
  HttpResponse Call(const ApiMethod& method, const std::string& request, const std::string& fields,
                    const Caller& caller);

  GenericClient coordinator_;
  Watches watches_;
  Calls calls_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_JSON_API_H_
