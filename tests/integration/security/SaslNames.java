// Whom a broker takes the sender of a SASL message for, said by Kafka's own classes:
// `java -cp 'libs/*' SaslNames.java JWKS`.
//
// Each line of standard input is a mechanism, a space, and a message in base64; OAUTHBEARER-SIGNED is OAUTHBEARER with
// the validator of signed tokens, whose keys are in the file JWKS. Each is answered with one line: "user" and the name
// in hexadecimal UTF-16, "token" for a delegation token, or "refused". Passwords and proofs are right whatever they are.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.AppConfigurationEntry.LoginModuleControlFlag;
import javax.security.sasl.SaslServer;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslServer;
import org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler;
import org.apache.kafka.common.security.plain.PlainAuthenticateCallback;
import org.apache.kafka.common.security.plain.internals.PlainSaslServer;
import org.apache.kafka.common.security.scram.ScramCredential;
import org.apache.kafka.common.security.scram.ScramCredentialCallback;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramSaslServer;
import org.apache.kafka.common.security.token.delegation.internals.DelegationTokenCredentialCallback;

public final class SaslNames {
    private static final ScramCredential ANY = new ScramCredential(new byte[16], new byte[32], new byte[32], 4096);

    private final AuthenticateCallbackHandler unsecured;
    private final AuthenticateCallbackHandler signed;

    private SaslNames(String jwks) {
        unsecured = configured(new OAuthBearerUnsecuredValidatorCallbackHandler(), Map.of());
        String url = Path.of(jwks).toUri().toString();
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", jwks);
        Map<String, Object> keys = Map.of(SaslConfigs.SASL_OAUTHBEARER_JWKS_ENDPOINT_URL, url);
        signed = configured(new OAuthBearerValidatorCallbackHandler(), keys);
    }

    private static AuthenticateCallbackHandler configured(AuthenticateCallbackHandler handler, Map<String, Object> own) {
        ConfigDef all = new ConfigDef();
        SaslConfigs.addClientSaslSupport(all);
        String module = OAuthBearerLoginModule.class.getName();
        var jaas = new AppConfigurationEntry(module, LoginModuleControlFlag.REQUIRED, Map.of());
        handler.configure(all.parse(own), OAuthBearerLoginModule.OAUTHBEARER_MECHANISM, List.of(jaas));
        return handler;
    }

    public static void main(String[] args) throws Exception {
        SaslNames names = new SaslNames(args[0]);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] message = Base64.getDecoder().decode(words[1]);
            String said;
            try {
                said = names.read(words[0], message);
            } catch (Throwable refused) { // a stack that a regular expression overflows among them
                said = "refused";
            }
            System.out.println(said);
            System.out.flush();
        }
    }

    private String read(String mechanism, byte[] message) throws Exception {
        switch (mechanism) {
            case "PLAIN":
                return accepted(new PlainSaslServer(SaslNames::letIn), message);
            case "OAUTHBEARER":
                return accepted(new OAuthBearerSaslServer(unsecured), message);
            case "OAUTHBEARER-SIGNED":
                return accepted(new OAuthBearerSaslServer(signed), message);
            default:
                // The exchange isn't over, but the server has taken a name by now, or refused to.
                Seen seen = new Seen();
                new ScramSaslServer(ScramMechanism.forMechanismName(mechanism), Map.of(), seen::handle).evaluateResponse(message);
                return seen.byToken ? "token" : user(seen.name);
        }
    }

    private static String accepted(SaslServer server, byte[] message) throws Exception {
        server.evaluateResponse(message);
        return server.isComplete() ? user(server.getAuthorizationID()) : "refused";
    }

    private static String user(String name) {
        return "user " + HexFormat.of().formatHex(name.getBytes(StandardCharsets.UTF_16BE)) + loneSurrogates(name);
    }

    // Java's encoder makes a question mark of them, which nobody could tell from a real one.
    private static String loneSurrogates(String name) {
        return StandardCharsets.UTF_16BE.newEncoder().canEncode(name) ? "" : " lone";
    }

    private static void letIn(Callback[] callbacks) {
        for (Callback callback : callbacks) {
            if (callback instanceof PlainAuthenticateCallback) {
                ((PlainAuthenticateCallback) callback).authenticated(true);
            }
        }
    }

    private static final class Seen {
        private String name;
        private boolean byToken;

        void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof NameCallback) {
                    name = ((NameCallback) callback).getDefaultName();
                } else {
                    byToken = callback instanceof DelegationTokenCredentialCallback;
                    if (byToken) {
                        ((DelegationTokenCredentialCallback) callback).tokenOwner("owner");
                    }
                    ((ScramCredentialCallback) callback).scramCredential(ANY);
                }
            }
        }
    }
}
