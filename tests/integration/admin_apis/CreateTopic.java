// Kafka's own admin client creates one topic as Strimzi's Topic Operator and Java programs do: arguments are bootstrap
// servers, name, partitions, "validate" or "create", and configs as key=value. Prints what the answer says of the topic
// ("partitions N" and each config that was set), or the error as "Class: message".

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;

public class CreateTopic {
    public static void main(String[] args) throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (int i = 4; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            configs.put(pair[0], pair[1]);
        }
        NewTopic topic = new NewTopic(args[1], Optional.of(Integer.parseInt(args[2])), Optional.empty());
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(args[3].equals("validate"));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            var result = admin.createTopics(List.of(topic.configs(configs)), options);
            System.out.println("partitions " + result.numPartitions(args[1]).get());
            for (ConfigEntry entry : result.config(args[1]).get().entries()) {
                if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) {
                    System.out.println(entry.name() + "=" + entry.value());
                }
            }
        } catch (ExecutionException error) {
            System.out.println(error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage());
        }
    }
}
