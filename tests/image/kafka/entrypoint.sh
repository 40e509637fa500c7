#!/bin/sh
# As in the image that this one stands in for, KAFKA_SOME_NAME is the broker's setting some.name.
set -eu
configuration=/home/appuser/server.properties
env | grep '^KAFKA_' | while IFS='=' read -r name value; do
    printf '%s=%s\n' "$(printf '%s' "${name#KAFKA_}" | tr 'A-Z_' 'a-z.')" "$value"
done >"$configuration"
broker() { java -Xmx1g -cp '/opt/kafka/jars/broker/*' -Dlog4j2.statusLoggerLevel=OFF "$@"; }
broker kafka.tools.StorageTool format --ignore-formatted --cluster-id 5L6g3nShT-eMCtK--X86sw --config "$configuration"
exec java -Xmx1g -cp '/opt/kafka/jars/broker/*' -Dlog4j2.statusLoggerLevel=OFF kafka.Kafka "$configuration"
