// Serves the console's files, with headers that say what a browser may do with them.
#pragma once

#include <optional>

#include "server/http/exchange.h"

namespace ovq::server {

// The answer to a GET of one of the console's files, "/" being index.html; unset if it has no such
// file. 304 without a body if the client's copy is current.
std::optional<HttpReply> ConsoleReply(const HttpRequest& request);

}  // namespace ovq::server
