// Applies transforms of Kafka Connect to records without a schema: the judge of our own.
// In: a line of JSON for each case, {"config": {name: value}, "records": [{topic, partition, offset, timestamp, key,
// value, headers: [[name, value]]}]} with texts (null for none). Out: a line each, {"records": [{...} | null | "error"]}
// or {"refused": message}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

public class ConnectTransforms {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final SimpleHeaderConverter HEADERS = new SimpleHeaderConverter();

    private record Step(Transformation<SinkRecord> transform, Predicate<SinkRecord> predicate, boolean negate) {
        SinkRecord apply(SinkRecord record) {
            return predicate == null || negate ^ predicate.test(record) ? transform.apply(record) : record;
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static ObjectNode answer(JsonNode request) {
        Map<String, String> config = new LinkedHashMap<>();
        request.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        ObjectNode answer = JSON.createObjectNode();
        List<Step> steps;
        try {
            steps = steps(config);
        } catch (Exception e) {
            return answer.put("refused", String.valueOf(e.getMessage()));
        }
        Converter key = converter(config, "key.converter", true);
        Converter value = converter(config, "value.converter", false);
        ArrayNode records = answer.putArray("records");
        for (JsonNode record : request.get("records")) {
            try {
                SinkRecord result = given(record, key, value);
                for (Step step : steps) {
                    result = result == null ? null : step.apply(result);
                }
                records.add(result == null ? JSON.nullNode() : shown(result, key, value));
            } catch (Exception e) {
                records.add("error");
            }
        }
        return answer;
    }

    private static List<Step> steps(Map<String, String> config) throws Exception {
        List<Step> steps = new ArrayList<>();
        for (String alias : config.get("transforms").split("\\s*,\\s*")) {
            Map<String, String> settings = below(config, "transforms." + alias + ".");
            Transformation<SinkRecord> transform = made(settings, "org.apache.kafka.connect.transforms.");
            Predicate<SinkRecord> predicate = null;
            if (settings.containsKey("predicate")) {
                Map<String, String> inner = below(config, "predicates." + settings.get("predicate") + ".");
                predicate = made(inner, "org.apache.kafka.connect.transforms.predicates.");
                predicate.configure(inner);
            }
            transform.configure(settings);
            steps.add(new Step(transform, predicate, Boolean.parseBoolean(settings.get("negate"))));
        }
        return steps;
    }

    @SuppressWarnings("unchecked")
    private static <T> T made(Map<String, String> settings, String home) throws Exception {
        String type = settings.get("type");
        return (T) Class.forName(type.contains(".") ? type : home + type).getDeclaredConstructor().newInstance();
    }

    private static Map<String, String> below(Map<String, String> config, String prefix) {
        Map<String, String> found = new HashMap<>();
        config.forEach((name, value) -> {
            if (name.startsWith(prefix)) {
                found.put(name.substring(prefix.length()), value);
            }
        });
        return found;
    }

    private static Converter converter(Map<String, String> config, String name, boolean isKey) {
        Converter converter = config.getOrDefault(name, "").endsWith("StringConverter")
            ? new StringConverter() : new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), isKey);
        return converter;
    }

    private static SinkRecord given(JsonNode record, Converter keyConverter, Converter valueConverter) {
        String topic = record.get("topic").asText();
        SchemaAndValue key = keyConverter.toConnectData(topic, bytes(record.get("key")));
        SchemaAndValue value = valueConverter.toConnectData(topic, bytes(record.get("value")));
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode header : record.get("headers")) {
            headers.add(header.get(0).asText(), HEADERS.toConnectHeader(topic, header.get(0).asText(), bytes(header.get(1))));
        }
        Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
        return new SinkRecord(topic, record.get("partition").asInt(), key.schema(), key.value(), value.schema(),
            value.value(), record.get("offset").asLong(), timestamp, TimestampType.CREATE_TIME, headers);
    }

    private static ObjectNode shown(SinkRecord record, Converter keyConverter, Converter valueConverter) {
        ObjectNode shown = JSON.createObjectNode();
        shown.put("topic", record.topic());
        shown.put("key", text(keyConverter.fromConnectData(record.topic(), record.keySchema(), record.key())));
        shown.put("value", text(valueConverter.fromConnectData(record.topic(), record.valueSchema(), record.value())));
        ArrayNode headers = shown.putArray("headers");
        for (Header header : record.headers()) {
            byte[] content = HEADERS.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value());
            headers.addArray().add(header.key()).add(text(content));
        }
        return shown;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] content) {
        return content == null ? null : new String(content, StandardCharsets.UTF_8);
    }
}
