// Produces a record for each line of the input with Java's producer and its default partitioner, and prints the
// partition that it went to. A line is a key in hexadecimal digits. Arguments: bootstrap servers, topic.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ProducedPartitions {
    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0]);
        ByteArraySerializer serializer = new ByteArraySerializer();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, serializer, serializer)) {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                sent.add(producer.send(new ProducerRecord<>(args[1], HexFormat.of().parseHex(line), new byte[0])));
            }
        }
        for (Future<RecordMetadata> each : sent) {
            System.out.println(each.get().partition());
        }
    }
}
