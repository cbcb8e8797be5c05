// What every caller of libcurl needs: owners of its objects, and its initialisation.
//
//   InitialiseCurlOnce();
//   const OwnedCurl curl(curl_easy_init());
#ifndef MILEPOST_COMMON_CURL_H_
#define MILEPOST_COMMON_CURL_H_

#include <curl/curl.h>

#include <memory>
#include <mutex>

namespace milepost {

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using OwnedCurl = std::unique_ptr<CURL, FreeCurl>;
using OwnedCurlList = std::unique_ptr<curl_slist, FreeCurl>;

// Thread-safe.
inline void InitialiseCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_CURL_H_
