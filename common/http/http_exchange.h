// One request and its answer, between libmicrohttpd and the handler. Internal to common/http.
#ifndef MILEPOST_COMMON_HTTP_HTTP_EXCHANGE_H_
#define MILEPOST_COMMON_HTTP_HTTP_EXCHANGE_H_

#include <microhttpd.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"

namespace milepost {

struct HttpExchange : std::enable_shared_from_this<HttpExchange> {
  HttpExchange(const HttpOptions& its_options, MHD_Connection* its_connection)
      : options(its_options), connection(its_connection) {}

  // The library's access handler calls these for this request: Head, then Body, then End, and End
  // again when the answer is there.
  MHD_Result Head(const char* method);
  MHD_Result Body(const char* data, size_t size);
  MHD_Result End(const char* method, const char* path);

  // Takes the answer. May be called from any thread.
  void Take(HttpResponse its_response);
  // Whether the client has closed the connection, as far as is known. From any thread.
  bool ClientLeft();
  // For a server that ends: nothing of this exchange waits any longer.
  void Abandon();

 private:
  MHD_Result Queue(const HttpResponse& answer);
  MHD_Result Refuse(int status, const std::string& why);
  HttpRequest Request(const char* method, const char* path);

  const HttpOptions& options;
  MHD_Connection* const connection;
  std::string body;      // used only by the library's thread
  bool handled = false;  // likewise
  absl::Mutex mutex;
  bool suspended ABSL_GUARDED_BY(mutex) = false;
  bool abandoned ABSL_GUARDED_BY(mutex) = false;
  std::optional<HttpResponse> response ABSL_GUARDED_BY(mutex);
  std::shared_ptr<HttpStream> stream ABSL_GUARDED_BY(mutex);
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_EXCHANGE_H_
