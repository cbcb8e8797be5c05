// Answers with the page's files.
#ifndef MILEPOST_CLIENT_WEB_STATIC_FILES_H_
#define MILEPOST_CLIENT_WEB_STATIC_FILES_H_

#include "common/http/http_server.h"

namespace milepost::client {

// "/" is index.html. 404: there is no such file.
HttpResponse AnswerFile(const HttpRequest& request);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_STATIC_FILES_H_
