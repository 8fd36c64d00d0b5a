// The console over HTTP: its files, and what a browser may do with them.
#pragma once

#include <optional>

#include "server/http/exchange.h"

namespace ovq {

// What a GET gets, "/" being index.html; unset if the console has no such file. 304 without a body
// for whoever has the file as it is.
std::optional<HttpReply> ConsoleReply(const HttpRequest& request);

}  // namespace ovq
