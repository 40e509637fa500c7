import java.time.Instant;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.IntegerSerializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/** What drivers.py does, with Kafka Streams' TopologyTestDriver. Prints the seconds of each measurement, one per line. */
public class TestDriverTimes {
    static final int RECORDS = 1_000;

    static TopologyTestDriver driver(StreamsBuilder builder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "times");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:1");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.IntegerSerde.class);
        return new TopologyTestDriver(builder.build(), settings, Instant.ofEpochMilli(0));
    }

    static void firstResult() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("sales", Consumed.with(Serdes.String(), Serdes.Integer()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Integer()))
            .aggregate(() -> 0, (shop, amount, total) -> total + amount, Materialized.as("sums"))
            .toStream().filter((shop, total) -> total > 3)
            .to("large", Produced.with(Serdes.String(), Serdes.Integer()));
        try (TopologyTestDriver driver = driver(builder)) {
            driver.createInputTopic("sales", new StringSerializer(), new IntegerSerializer()).pipeInput("a", 4);
            if (!Integer.valueOf(4).equals(driver.getKeyValueStore("sums").get("a"))) throw new AssertionError();
        }
    }

    static void manyRecords() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("sales", Consumed.with(Serdes.String(), Serdes.Integer()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Integer())).count(Materialized.as("counts"));
        try (TopologyTestDriver driver = driver(builder)) {
            var sales = driver.createInputTopic("sales", new StringSerializer(), new IntegerSerializer());
            for (int number = 0; number < RECORDS; number++) sales.pipeInput("shop " + number % 50, number);
            if (!Long.valueOf(RECORDS / 50).equals(driver.getKeyValueStore("counts").get("shop 49"))) throw new AssertionError();
        }
    }

    static void time(Runnable work) {
        long begin = System.nanoTime();
        work.run();
        System.out.println((System.nanoTime() - begin) / 1e9);
    }

    public static void main(String[] arguments) {
        if (arguments.length == 0) {
            firstResult();
            return;
        }
        firstResult();
        manyRecords();
        int runs = Integer.parseInt(arguments[0]);
        for (int run = 0; run < runs; run++) time(TestDriverTimes::firstResult);
        for (int run = 0; run < runs; run++) time(TestDriverTimes::manyRecords);
    }
}
