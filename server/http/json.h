// The JSON values of HTTP bodies.
#pragma once

#include <nlohmann/json.hpp>

namespace ovq::server {

// Objects keep the order of their keys: chat templates show a model the tools and calls that a body
// has in the body's order. Bodies are parsed by ParseOrderedObject, which limits the keys.
using Json = nlohmann::ordered_json;

}  // namespace ovq::server
