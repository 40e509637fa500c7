import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.ByteString;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.InputStream;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.avro.Conversions;
import org.apache.avro.LogicalType;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/**
 * Reads records with Java's own library of a format, prints each value, and writes it again.
 *
 * Arguments: AVRO or PROTOBUF, and a folder. The folder has `records` (for each record the number
 * of its schema, its length and its bytes), the schemas as N.avsc or N.desc, and the reader's
 * schema as `reader`. The results are in `values` and `rewritten`.
 */
public class FormatsPeer {
    interface Peer {
        Object read(int schema, byte[] data) throws Exception;

        String text(Object value);

        byte[] write(Object value, int number) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        Peer peer = arguments[0].equals("AVRO") ? new AvroPeer(folder) : new ProtoPeer(folder);
        try (DataInputStream records = input(folder.resolve("records"));
                PrintStream values = new PrintStream(
                        Files.newOutputStream(folder.resolve("values")), false, "UTF-8");
                DataOutputStream rewritten = new DataOutputStream(new BufferedOutputStream(
                        Files.newOutputStream(folder.resolve("rewritten"))))) {
            for (int number = 0; ; number++) {
                int schema;
                try {
                    schema = records.readInt();
                } catch (EOFException end) {
                    break;
                }
                byte[] data = records.readNBytes(records.readInt());
                Object value = peer.read(schema, data);
                values.println(peer.text(value));
                byte[] written = peer.write(value, number);
                rewritten.writeInt(written.length);
                rewritten.write(written);
            }
        }
    }

    static DataInputStream input(Path path) throws Exception {
        InputStream stream = Files.newInputStream(path);
        return new DataInputStream(new BufferedInputStream(stream));
    }

    static String hex(byte[] data) {
        return HexFormat.of().formatHex(data);
    }

    static String text(String value) {
        return "s" + hex(value.getBytes(StandardCharsets.UTF_8));
    }

    static String number(double value) {
        return "d" + Long.toHexString(Double.doubleToLongBits(value));
    }

    static String time(Instant instant) {
        BigInteger seconds = BigInteger.valueOf(instant.getEpochSecond());
        BigInteger nanos = BigInteger.valueOf(instant.getNano());
        return "t" + seconds.multiply(BigInteger.valueOf(1_000_000_000)).add(nanos);
    }

    static String map(Map<String, String> entries) {
        StringBuilder made = new StringBuilder("{");
        new TreeMap<>(entries).forEach((key, value) -> made.append(key + ":" + value + ","));
        return made + "}";
    }

    /** Avro 1.12.1 writes times before 1970 in nanoseconds that are 0.999 s off. */
    static class Nanoseconds extends TimeConversions.TimestampNanosConversion {
        @Override
        public Long toLong(Instant instant, Schema schema, LogicalType type) {
            long nanos = Math.multiplyExact(instant.getEpochSecond(), 1_000_000_000L);
            return Math.addExact(nanos, instant.getNano());
        }
    }

    static class LocalNanoseconds extends TimeConversions.LocalTimestampNanosConversion {
        @Override
        public Long toLong(LocalDateTime time, Schema schema, LogicalType type) {
            return new Nanoseconds().toLong(time.toInstant(ZoneOffset.UTC), schema, type);
        }
    }

    static class AvroPeer implements Peer {
        final GenericData data = new GenericData();
        final Schema reader;
        final Map<Integer, GenericDatumReader<Object>> readers = new HashMap<>();
        final Path folder;

        AvroPeer(Path folder) throws Exception {
            this.folder = folder;
            data.addLogicalTypeConversion(new Conversions.DecimalConversion());
            data.addLogicalTypeConversion(new Conversions.UUIDConversion());
            data.addLogicalTypeConversion(new TimeConversions.DateConversion());
            data.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
            data.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
            data.addLogicalTypeConversion(new Nanoseconds());
            data.addLogicalTypeConversion(new TimeConversions.LocalTimestampMillisConversion());
            data.addLogicalTypeConversion(new TimeConversions.LocalTimestampMicrosConversion());
            data.addLogicalTypeConversion(new LocalNanoseconds());
            reader = new Schema.Parser().parse(folder.resolve("reader").toFile());
        }

        public Object read(int schema, byte[] bytes) throws Exception {
            GenericDatumReader<Object> own = readers.get(schema);
            if (own == null) {
                Path path = folder.resolve(schema + ".avsc");
                Schema writer = new Schema.Parser().parse(path.toFile());
                own = new GenericDatumReader<>(writer, reader, data);
                readers.put(schema, own);
            }
            BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(bytes, null);
            Object value = own.read(null, decoder);
            if (!decoder.isEnd()) {
                throw new IllegalStateException("bytes are left over");
            }
            return value;
        }

        public byte[] write(Object value, int number) throws Exception {
            ByteArrayOutputStream made = new ByteArrayOutputStream();
            // Every other record has lists in blocks whose sizes are said.
            BinaryEncoder encoder = number % 2 == 0
                    ? EncoderFactory.get().binaryEncoder(made, null)
                    : EncoderFactory.get().blockingBinaryEncoder(made, null);
            new GenericDatumWriter<Object>(reader, data).write(value, encoder);
            encoder.flush();
            return made.toByteArray();
        }

        public String text(Object value) {
            if (value == null || value instanceof Boolean || value instanceof Integer
                    || value instanceof Long) {
                return String.valueOf(value);
            }
            if (value instanceof Float || value instanceof Double) {
                return FormatsPeer.number(((Number) value).doubleValue());
            }
            if (value instanceof BigDecimal decimal) {
                return "n" + decimal.toPlainString();
            }
            if (value instanceof Instant instant) {
                return time(instant);
            }
            if (value instanceof LocalDateTime local) {
                return time(local.toInstant(ZoneOffset.UTC));
            }
            if (value instanceof LocalDate day) {
                return "D" + day.toEpochDay();
            }
            if (value instanceof ByteBuffer buffer) {
                byte[] bytes = new byte[buffer.remaining()];
                buffer.duplicate().get(bytes);
                return "b" + hex(bytes);
            }
            if (value instanceof GenericFixed fixed) {
                return "b" + hex(fixed.bytes());
            }
            if (value instanceof List<?> list) {
                StringBuilder made = new StringBuilder("[");
                list.forEach(each -> made.append(text(each)).append(","));
                return made + "]";
            }
            if (value instanceof Map<?, ?> entries) {
                Map<String, String> texts = new HashMap<>();
                entries.forEach((key, each) ->
                        texts.put(FormatsPeer.text(key.toString()), text(each)));
                return map(texts);
            }
            if (value instanceof IndexedRecord record) {
                StringBuilder made = new StringBuilder("(");
                for (Schema.Field field : record.getSchema().getFields()) {
                    made.append(field.name() + "=" + text(record.get(field.pos())) + ";");
                }
                return made + ")";
            }
            return FormatsPeer.text(value.toString());
        }
    }

    static class ProtoPeer implements Peer {
        final Map<Integer, Descriptor> descriptors = new HashMap<>();
        final Descriptor reader;
        final Path folder;

        ProtoPeer(Path folder) throws Exception {
            this.folder = folder;
            reader = descriptor(folder.resolve("reader"));
        }

        static Descriptor descriptor(Path path) throws Exception {
            FileDescriptorSet set = FileDescriptorSet.parseFrom(Files.readAllBytes(path));
            Map<String, FileDescriptor> files = new HashMap<>();
            FileDescriptor last = null;
            for (FileDescriptorProto proto : set.getFileList()) {
                List<FileDescriptor> dependencies = new ArrayList<>();
                for (String name : proto.getDependencyList()) {
                    dependencies.add(files.get(name));
                }
                last = FileDescriptor.buildFrom(
                        proto, dependencies.toArray(new FileDescriptor[0]));
                files.put(proto.getName(), last);
            }
            return last.getMessageTypes().get(0);
        }

        public Object read(int schema, byte[] data) throws Exception {
            // Protobuf's reader uses its own schema, and keeps the fields that it does not know.
            return DynamicMessage.parseFrom(reader, data);
        }

        public byte[] write(Object value, int number) {
            return ((Message) value).toByteArray();
        }

        public String text(Object value) {
            return message((Message) value);
        }

        String message(Message message) {
            Descriptor type = message.getDescriptorForType();
            if (type.getFullName().equals("google.protobuf.Timestamp")) {
                Long seconds = (Long) message.getField(type.findFieldByName("seconds"));
                Integer nanos = (Integer) message.getField(type.findFieldByName("nanos"));
                return time(Instant.ofEpochSecond(seconds, nanos));
            }
            if (type.getFile().getName().equals("google/protobuf/wrappers.proto")) {
                return single(type.findFieldByName("value"),
                        message.getField(type.findFieldByName("value")));
            }
            StringBuilder made = new StringBuilder("(");
            for (FieldDescriptor field : type.getFields()) {
                made.append(field.getName() + "=" + field(message, field) + ";");
            }
            return made + ")";
        }

        String field(Message message, FieldDescriptor field) {
            if (field.isMapField()) {
                Map<String, String> texts = new HashMap<>();
                Descriptor entry = field.getMessageType();
                for (Object each : (List<?>) message.getField(field)) {
                    Message pair = (Message) each;
                    FieldDescriptor key = entry.findFieldByName("key");
                    FieldDescriptor value = entry.findFieldByName("value");
                    texts.put(FormatsPeer.text(pair.getField(key).toString()),
                            single(value, pair.getField(value)));
                }
                return map(texts);
            }
            if (field.isRepeated()) {
                StringBuilder made = new StringBuilder("[");
                for (Object each : (List<?>) message.getField(field)) {
                    made.append(single(field, each)).append(",");
                }
                return made + "]";
            }
            if (field.hasPresence() && !message.hasField(field) && !field.hasDefaultValue()) {
                return "null";
            }
            return single(field, message.getField(field));
        }

        String single(FieldDescriptor field, Object value) {
            if (value instanceof Message inner) {
                return message(inner);
            }
            if (value instanceof EnumValueDescriptor chosen) {
                return FormatsPeer.text(chosen.getName());
            }
            if (value instanceof ByteString bytes) {
                return "b" + hex(bytes.toByteArray());
            }
            if (value instanceof String text) {
                return FormatsPeer.text(text);
            }
            if (value instanceof Float || value instanceof Double) {
                return FormatsPeer.number(((Number) value).doubleValue());
            }
            if (value instanceof Integer whole) {
                boolean isUnsigned = field.getType() == FieldDescriptor.Type.UINT32
                        || field.getType() == FieldDescriptor.Type.FIXED32;
                return isUnsigned ? Integer.toUnsignedString(whole) : whole.toString();
            }
            return String.valueOf(value);
        }
    }
}
