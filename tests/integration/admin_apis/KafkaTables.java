// Kafka's own tables, said by its classes: `java -cp 'libs/*' KafkaTables.java`.
//
// A line for each API, `api KEY NAME LOWEST HIGHEST REQUEST ANSWER`, where REQUEST and ANSWER are the first versions
// whose headers have tagged fields, or -1 (all versions that are left in this release count); and a line for each
// error, `error CODE NAME RETRIABLE`.

import java.util.function.IntPredicate;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.Errors;

public final class KafkaTables {
    private KafkaTables() {
    }

    private static int first(ApiMessageType api, IntPredicate flexible) {
        for (int version = api.lowestSupportedVersion(); version <= api.highestSupportedVersion(true); version++) {
            if (flexible.test(version)) {
                return version;
            }
        }
        return -1;
    }

    public static void main(String[] none) {
        for (ApiMessageType api : ApiMessageType.values()) {
            int request = first(api, version -> api.requestHeaderVersion((short) version) >= 2);
            int answer = first(api, version -> api.responseHeaderVersion((short) version) >= 1);
            System.out.printf("api %d %s %d %d %d %d%n", api.apiKey(), api.name, api.lowestSupportedVersion(),
                api.highestSupportedVersion(false), request, answer);
        }
        for (Errors error : Errors.values()) {
            boolean retriable = error.exception() instanceof RetriableException;
            System.out.printf("error %d %s %b%n", error.code(), error.name(), retriable);
        }
    }
}
