#!/bin/bash
# Starts a Spark executor in a pod: what the entry point of Spark's own images does with the
# arguments and the environment that Spark gives an executor's container.
set -e
options=()
while IFS= read -r option; do
  options+=("$option")
done < <(env | sort -t_ -k4 -n | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" \
  "${options[@]}" \
  -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "$SPARK_CLASSPATH:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
