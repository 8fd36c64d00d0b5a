#include "server/http/message_json.h"

#include <google/protobuf/util/json_util.h>

namespace ovq::server {

std::string MessageJson(const google::protobuf::Message& message) {
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(
      message, &json);  // fails only for Any messages of unknown types
  return json;
}

}  // namespace ovq::server
